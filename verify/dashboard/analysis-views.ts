import type { SessionResult } from '@floe-rl/core/schema';
import type { Page } from 'playwright-core';
import { decimals, hasRow, mean, type Results, share, short, timeText, total } from './figures.ts';
import { BATCH_BOUND, BATCH_STREAM, BATCH_VERSION } from './simulated.ts';
import { sees, type View } from './views.ts';

const harnessOf = ({ metadata }: SessionResult): unknown => metadata.harness;

/** The views below `#/analysis`. */
export const ANALYSIS_VIEWS: readonly View<Results>[] = [
  {
    name: 'analysis: fidelity by harness, dialect and engine',
    at: () => '#/analysis/fidelity?engine=vllm',
    check: async (page, results) => {
      const own = results.filter(
        (result) => harnessOf(result) === 'codex' && result.calls?.engines.includes('vllm') === true,
      );
      const [exact, drifted] = [linksOf(own, 'exact'), linksOf(own, 'rerendered')];
      await hasRow(page, 'codex', [
        'openai_responses',
        'vllm',
        short(own.length),
        short(total(own, ({ audit }) => audit?.tokens.sampled ?? 0)),
        share(
          total(own, ({ trainable_tokens: tokens }) => tokens),
          total(own, ({ audit }) => audit?.tokens.sampled ?? 0),
        ),
        share(exact, exact + drifted),
        share(drifted, exact + drifted),
        `rewritten ${short(drifted)}`,
        `spliced ${short(total(own, ({ calls }) => calls?.spliced ?? 0))}`,
      ]);
    },
  },
  {
    name: 'analysis: a cell leads to its sessions',
    at: () => '#/analysis/fidelity',
    check: async (page, results) => {
      await page.getByRole('link', { name: 'rewritten' }).first().click();
      await page.waitForURL((url) => url.hash.includes('measure=drift%3Arewritten') && url.hash.includes('harness='));
      const params = new URLSearchParams(new URL(page.url()).hash.split('?')[1]);
      const own = results.filter(
        (result) =>
          harnessOf(result) === params.get('harness') &&
          result.calls?.engines[0] === params.get('engine') &&
          result.audit?.drift.rewritten === 1,
      );
      await hasFigure(page, 'sessions', short(own.length));
    },
  },
  {
    name: 'analysis: cost of a usable sample',
    at: () => '#/analysis/cost?by=source',
    check: async (page, results) => {
      const own = results.filter(({ metadata }) => metadata.data_source === 'swe');
      const usable = own.filter((result) => result.unusable === null).length;
      const sampled = total(own, ({ audit }) => audit?.tokens.sampled ?? 0);
      await hasRow(page, 'swe', [
        short(own.length),
        `${short(usable)} (${share(usable, own.length)})`,
        short(sampled),
        '',
        '',
        short(Math.round(sampled / usable)),
        short(Math.round(total(own, ({ cost }) => cost?.prompt_tokens ?? 0) / usable)),
        timeText(total(own, ({ calls }) => calls?.engine_ms ?? 0) / usable / 1000),
        timeText(total(own, ({ timing }) => timing.total_ms) / usable / 1000),
        timeText(total(own, ({ cost }) => cost?.node_cpu_ms ?? 0) / usable / 1000),
        short(Math.round(total(own, ({ cost }) => cost?.stored_bytes ?? 0) / usable)),
      ]);
      await page.getByRole('combobox', { name: 'by' }).selectOption('harness');
      await page.getByRole('rowheader', { name: 'codex' }).waitFor();
      if (!page.url().includes('by=harness')) throw new Error(`the field is not in the address: ${page.url()}`);
    },
  },
  {
    name: 'analysis: tools and hints',
    at: () => '#/analysis/tools?harness=pi',
    check: async (page, results) => {
      const own = results.filter((result) => harnessOf(result) === 'pi');
      const tools = own.flatMap(({ calls }) => calls?.tools ?? []);
      const sum = (of: (tool: (typeof tools)[number]) => number): number =>
        tools.reduce((all, tool) => all + of(tool), 0);
      const [calls, failures] = [sum((tool) => tool.calls), sum((tool) => tool.failures)];
      const ms = sum((tool) => tool.total_ms);
      await hasRow(page, 'bash', [
        short(calls),
        `${short(failures)} (${share(failures, calls)})`,
        timeText(ms / calls / 1000),
        timeText(quantile(own, 0.5)),
        timeText(quantile(own, 0.95)),
      ]);
      const hinted = own.filter(({ agent }) => agent?.episode?.metrics['hints.no_call'] === 2).length;
      await hasRow(page, 'no_call', [short(2 * hinted)]);
      await sees(page, 'Calls of all tools by hour');
      await page.getByRole('button', { name: 'bash' }).click();
      await sees(page, 'Calls of bash by hour');
      if (!page.url().includes('tool=bash')) throw new Error(`the tool is not in the address: ${page.url()}`);
    },
  },
  {
    name: 'analysis: parts of rewards, and what teaches nothing',
    at: () => '#/analysis/rewards?source=gsm8k&version=2',
    check: async (page, results) => {
      const own = results.filter(
        ({ metadata, policy_versions: versions }) => metadata.data_source === 'gsm8k' && versions?.last === '2',
      );
      const rewarded = own.filter(({ reward_components: parts }) => parts.tests !== undefined);
      const tests = rewarded.map(({ reward_components: parts }) => parts.tests ?? 0);
      await hasRow(page, 'tests', ['gsm8k', '2', short(tests.length), decimals(mean(tests), 3)]);
      const style = rewarded.filter(({ reward_components: parts }) => parts.style === null).length;
      await hasRow(page, 'style', ['gsm8k', '2', short(rewarded.length), '0.5', '0', short(style)]);
      const late = own.filter(({ unusable }) => unusable === 'agent_timeout').length;
      await hasRow(page, 'agent_timeout', [short(late), share(late, own.length)]);
      await sees(page, 'Of the newest');
      await hasRow(page, BATCH_STREAM, ['default', '8']);
    },
  },
  {
    name: 'analysis: sessions over time',
    at: () => '#/analysis/timeline?harness=shell',
    check: async (page, results) => {
      const newest = results.filter((result) => harnessOf(result) === 'shell').slice(-300);
      await sees(page, `${newest.length} sessions from`);
      const bars = page.locator('.timeline a');
      await bars.nth(newest.length - 1).waitFor();
      // The newest version is 4. Sessions before the first session of version 4 may count as new, and one of the first 20 sessions has this
      // version.
      const old = newest.filter(({ policy_versions: versions }) => versions?.first !== '4').length;
      const marked = await page.locator('.timeline a.stale').count();
      if (marked > old || marked < old - 20) throw new Error(`${marked} bars are marked as old, not about ${old}`);
      await page.getByRole('combobox', { name: 'colours show' }).selectOption('stage');
      await page
        .locator('.timeline .stage-RUNNING')
        .nth(newest.length - 1)
        .waitFor();
      if (!page.url().includes('by=stage')) throw new Error(`the colours are not in the address: ${page.url()}`);
      await page.getByRole('button', { name: 'Earlier' }).click();
      await page.waitForURL((url) => url.hash.includes('until='));
      await page.getByRole('button', { name: 'Newest' }).waitFor();
    },
  },
  {
    name: 'analysis: staleness of samples against the bound',
    at: () => '#/analysis/staleness',
    check: async (page, results) => {
      const own = results.filter(({ metadata, unusable }) => metadata.row !== undefined && unusable === null);
      const steps = own.map(({ policy_versions: versions }) => Number(BATCH_VERSION) - Number(versions?.first));
      const over = steps.filter((step) => step > BATCH_BOUND).length;
      await hasFigure(page, 'bound', String(BATCH_BOUND));
      await hasFigure(page, 'over the bound', share(over, own.length));
      for (const step of [1, 2, 3, 4]) {
        const count = steps.filter((one) => one === step).length;
        await hasRow(page, String(step), [short(count), share(count, own.length)]);
      }
      await page.locator('.column.bad').first().waitFor();
    },
  },
  {
    name: 'analysis: nothing matches',
    at: () => '#/analysis/tools?source=absent',
    check: async (page) => {
      await sees(page, 'No session that matches has called a tool.');
      await sees(page, 'Only floe agents give them.');
    },
  },
];

function linksOf(results: Results, link: 'exact' | 'rerendered'): number {
  return total(results, ({ audit }) => audit?.links[link] ?? 0);
}

/** Returns a quantile of the durations of tool calls in seconds: the middle of the histogram interval that contains it. */
function quantile(results: Results, at: number): number {
  const counts = new Map<number, number>();
  for (const { calls } of results) {
    for (const [interval, count] of Object.entries(calls?.tools[0]?.times ?? {})) {
      counts.set(Number(interval), (counts.get(Number(interval)) ?? 0) + count);
    }
  }
  const sorted = [...counts].sort(([a], [b]) => a - b).flatMap(([interval, count]) => Array(count).fill(interval));
  return 2 ** (((sorted[Math.ceil(at * sorted.length) - 1] as number) - 0.5) / 4) / 1000;
}

/** Resolves when a figure at the top of a view has a value. */
async function hasFigure(page: Page, label: string, value: string): Promise<void> {
  const figure = page.locator('.figure').filter({ has: page.getByText(label, { exact: true }) });
  await figure.filter({ hasText: new RegExp(`^${value}`) }).waitFor();
}
