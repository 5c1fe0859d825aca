import { ANALYSIS_VIEWS } from './analysis-views.ts';
import { decimals, hasRow, mean, type Results, short } from './figures.ts';
import { sees, type View } from './views.ts';

/** Views with sums over many sessions. The expected figures are computed from the results, without the server's sums. */
export const SUM_VIEWS: readonly View<Results>[] = [
  {
    name: 'compare: two policy versions',
    at: () => '#/compare?a=version%3D1&b=version%3D4&resolved=0.75',
    check: async (page, results) => {
      await sees(page, 'B minus A');
      const [a, b] = [ofVersion(results, '1'), ofVersion(results, '4')];
      const means = [a, b].map((side) => decimals(mean(rewardsOf(side)), 3)) as [string, string];
      await hasRow(page, 'Sessions', [short(a.length), short(b.length)]);
      await hasRow(page, 'Mean reward', [
        means[0],
        means[1],
        `+${decimals(mean(rewardsOf(b)) - mean(rewardsOf(a)), 3)}`,
      ]);
      await hasRow(page, 'Resolved', [resolvedShare(a), resolvedShare(b)]);
      const ofSource = a.filter(({ metadata }) => metadata.data_source === 'swe');
      await hasRow(page, 'swe', [short(ofSource.length), decimals(mean(rewardsOf(ofSource)), 3)]);
    },
  },
  {
    name: 'compare: filters of one side in the address',
    at: () => '#/compare?a=harness%3Dpi',
    check: async (page, results) => {
      const side = page.getByRole('form', { name: 'Filters of side B' });
      await side.getByRole('combobox', { name: /^harness/ }).selectOption('codex');
      await page.waitForURL((url) => url.hash.includes('b=harness%3Dcodex') && url.hash.includes('a=harness%3Dpi'));
      await hasRow(page, 'Turns per session', [turnsMean(results, 'pi'), turnsMean(results, 'codex')]);
    },
  },
  {
    name: 'compare: nothing matches',
    at: () => '#/compare?b=source%3Dabsent',
    check: (page) => sees(page, 'No ended session matches the filters of B'),
  },
  ...ANALYSIS_VIEWS,
];

function ofVersion(results: Results, version: string): Results {
  return results.filter(({ policy_versions: versions }) => versions?.last === version);
}

function rewardsOf(results: Results): number[] {
  return results.flatMap(({ reward }) => (reward === null ? [] : [reward]));
}

/** Returns the share of sessions with a reward of at least 0.75, among all sessions with a reward. */
function resolvedShare(results: Results): string {
  const rewards = rewardsOf(results);
  return `${decimals((100 * rewards.filter((reward) => reward >= 0.75).length) / rewards.length, 1)} %`;
}

function turnsMean(results: Results, harness: string): string {
  const ofHarness = results.filter(({ metadata }) => metadata.harness === harness);
  return decimals(mean(ofHarness.map(({ agent }) => agent?.turns ?? 0)), 1);
}
