// Formats the output of `npm run verify -- learn`: a line for each run, a table, and the curves of the mean reward as text and as SVG.
import { tableOf } from '../runner/report.ts';
import { countsOf } from './judge.ts';
import type { Plan, Run } from './run.ts';

const BARS = [...'▁▂▃▄▅▆▇█'];

/** Returns one character for each step. Its height shows the mean reward from 0 to 1. */
function sparkline(rewards: readonly number[]): string {
  return rewards.map((reward) => BARS[Math.min(BARS.length - 1, Math.floor(reward * BARS.length))] ?? '?').join('');
}

export function rowOf(run: Run, problems: readonly string[]): string {
  const verdict = problems.length > 0 ? 'FAILED ' : 'ok     ';
  const curve = sparkline(run.steps.map(({ meanReward }) => meanReward));
  const rewards = `${run.rewardStart.toFixed(2)} to ${run.rewardEnd.toFixed(2)}`;
  return `${verdict} ${curve}  ${rewards}  ${nameOf(run)} (${run.seconds.toFixed(0)} s)`;
}

export function nameOf({ harness, seed, sabotage, python }: Plan): string {
  return `${harness}, seed ${seed}, ${sabotage?.name ?? 'as delivered'}${python === null ? '' : ', in Python'}`;
}

/** Returns the runs as a Markdown table. */
export function tableOfRuns(runs: readonly Run[]): string {
  const head = [
    ...[
      'harness',
      'trainer',
      'data',
      'seed',
      'reward at the start',
      'at the end',
      'curve',
      'steps',
      'sessions',
      'stale',
    ],
    ...['trained tokens', 'at a choice', 'impossible', 'seconds'],
  ];
  const rows = runs.map((run) => {
    const { sessions, tokens, choices, impossible, stale } = countsOf(run.steps);
    return [
      ...[run.harness, run.python === null ? 'TypeScript' : 'Python'],
      ...[run.sabotage?.name ?? 'as delivered', String(run.seed)],
      ...[run.rewardStart.toFixed(2), run.rewardEnd.toFixed(2), sparkline(run.steps.map((step) => step.meanReward))],
      ...[String(run.steps.length), String(sessions), `${((100 * stale) / Math.max(1, tokens)).toFixed(0)} %`],
      ...[String(tokens), String(choices), String(impossible), run.seconds.toFixed(0)],
    ];
  });
  return tableOf(head, rows);
}

const WIDTH = 640;
const HEIGHT = 300;
const MARGIN = { left: 44, right: 190, top: 16, bottom: 36 };
const COLOURS: Readonly<Record<string, string>> = {
  'as delivered': '#1a7f37',
  'mask shifted by one': '#cf222e',
  'ids re-tokenised': '#8250df',
  'rewards permuted': '#bf8700',
};

/** Returns the curves of the runs as an SVG picture: the mean reward of each step, one line per run, one colour per kind of data. */
export function curvesSvg(runs: readonly Run[]): string {
  const last = Math.max(1, ...runs.map(({ steps }) => steps.length)) - 1;
  const x = (step: number): number => MARGIN.left + (step / Math.max(1, last)) * (WIDTH - MARGIN.left - MARGIN.right);
  const y = (reward: number): number => MARGIN.top + (1 - reward) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const lines = runs.map(({ steps, sabotage }) => {
    const points = steps.map(({ meanReward }, step) => `${x(step).toFixed(1)},${y(meanReward).toFixed(1)}`).join(' ');
    const colour = COLOURS[sabotage?.name ?? 'as delivered'] ?? '#57606a';
    return `<polyline points="${points}" fill="none" stroke="${colour}" stroke-width="1.6"/>`;
  });
  const grid = [0, 0.25, 0.5, 0.75, 1].flatMap((reward) => [
    `<line x1="${MARGIN.left}" x2="${x(last)}" y1="${y(reward)}" y2="${y(reward)}" stroke="#d0d7de"/>`,
    `<text x="${MARGIN.left - 8}" y="${y(reward) + 4}" text-anchor="end">${reward}</text>`,
  ]);
  const steps = Array.from({ length: last + 1 }, (_, step) => step).map(
    (step) => `<text x="${x(step)}" y="${HEIGHT - MARGIN.bottom + 16}" text-anchor="middle">${step + 1}</text>`,
  );
  const legend = Object.entries(COLOURS).map(
    ([name, colour], index) =>
      `<text x="${x(last) + 16}" y="${MARGIN.top + 14 + 20 * index}" fill="${colour}">${name}</text>`,
  );
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="sans-serif" font-size="11" fill="#57606a">`,
    '<title>Mean reward by step</title>',
    `<rect width="${WIDTH}" height="${HEIGHT}" fill="#ffffff"/>`,
    ...grid,
    ...steps,
    `<text x="${(MARGIN.left + x(last)) / 2}" y="${HEIGHT - 6}" text-anchor="middle">step</text>`,
    ...lines,
    ...legend,
    '</svg>\n',
  ].join('\n');
}
