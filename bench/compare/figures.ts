import { median, pairedRatio } from '../report.ts';

/**
 * One number of a bench's JSON. `path` names its keys, separated by points. `better` is the direction in which the number improves.
 */
export type Figure = { readonly path: string; readonly better: 'lower' | 'higher' };

/** A bench that both commits run: its name, the arguments of its quick form, and the figures that are compared. */
export type ComparedBench = {
  readonly name: string;
  readonly args: readonly string[];
  readonly figures: readonly Figure[];
};

const lower = (path: string): Figure => ({ path, better: 'lower' });
const higher = (path: string): Figure => ({ path, better: 'higher' });

/** All figures are CPU times, or rates or ratios of CPU times, because those vary less than wall time on a machine with other load. */
export const BENCHES: readonly ComparedBench[] = [
  {
    name: 'proxy',
    args: ['--quick', '--only=small_c1,turn_c1'],
    figures: [lower('cases.small_c1.cpu_over_floor'), lower('cases.turn_c1.cpu_over_floor')],
  },
  {
    name: 'builder',
    args: ['--quick'],
    figures: [lower('cpu_ms_60x40k'), lower('cpu_ms_200x200k'), lower('records_cpu_ms_200x200k')],
  },
  {
    name: 'dialects',
    args: ['--quick'],
    figures: ['anthropic', 'openai_chat', 'openai_responses', 'gemini'].map((name) => lower(`ratio_to_parse.${name}`)),
  },
  { name: 'export', args: ['--quick'], figures: [higher('jsonl_tokens_per_s'), higher('arrow_tokens_per_s')] },
];

/** Returns the number that `path` names in the JSON of a bench; `null` when there is none. */
export function readFigure(json: unknown, path: string): number | null {
  let value: unknown = json;
  for (const key of path.split('.')) {
    if (typeof value !== 'object' || value === null) return null;
    value = (value as Readonly<Record<string, unknown>>)[key];
  }
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}

/**
 * One figure of two commits. `base` and `head` are medians over the runs. The ratio of a pair of runs is the cost of the head divided by the
 * cost of the base, so above 1 is worse, for rates as well. `ratio` is the median of these ratios. `spread` is the least and the greatest.
 */
export type Comparison = {
  readonly base: number;
  readonly head: number;
  readonly ratio: number;
  readonly spread: readonly [least: number, greatest: number];
};

/** Compares the runs of two commits, pair by pair. Throws RangeError when there is no pair. */
export function compare(better: Figure['better'], base: readonly number[], head: readonly number[]): Comparison {
  const ratios = better === 'lower' ? pairedRatio(head, base) : pairedRatio(base, head);
  const [ofBase, ofHead] = [base, head].map(median);
  if (ratios === null || typeof ofBase !== 'number' || typeof ofHead !== 'number') {
    throw new RangeError('there is no pair of runs to compare');
  }
  return { base: ofBase, head: ofHead, ratio: ratios.median, spread: [ratios.least, ratios.greatest] };
}

/**
 * Whether a figure got worse by more than `bound`, a share such as 0.1. All pairs of runs must agree that it got worse, because a single
 * disturbed run moves a median of few.
 */
export function isWorse({ ratio, spread }: Comparison, bound: number): boolean {
  return ratio > 1 + bound && spread[0] > 1;
}
