// Measures how close batch streams come to the least possible time of dynamic sampling (DAPO), on a virtual clock. The streams are compared
// with sampling batch by batch and with the optimum of the same groups.
//
//   npm run bench -- dapo [--seed N] [--batches N] [--quick] [--json]
import { parseArgs } from 'node:util';
import { wholeNumber } from '../../tools/whole-number.ts';
import { percentile, printReport, type ReportRow, round } from '../report.ts';
import { batchByBatchMs, optimumMs, type Plan } from './batch-by-batch.ts';
import { runStream } from './stream-run.ts';
import { isInformative, type Sample, SWE_LIKE, samplesOf } from './workload.ts';

const SAMPLES = 8;
const BATCH_GROUPS = 32;
/** Maximum age of a group in policy steps. With 512 workers two batches run at once, so the slowest groups are several steps old. */
const MAX_STALENESS = 8;
/** Number of groups that the mean duration of an informative group is computed from. */
const POPULATION = 20_000;

const { values: options } = parseArgs({
  options: {
    seed: { type: 'string', default: '1' },
    batches: { type: 'string' },
    quick: { type: 'boolean', default: false },
    json: { type: 'boolean', default: false },
  },
});
const seed = wholeNumber('seed', options.seed);
const batches = wholeNumber('batches', options.batches ?? (options.quick ? '5' : '20'));
if (!Number.isInteger(seed) || !(Number.isInteger(batches) && batches > 1)) {
  console.error('--seed and --batches must be whole numbers, and --batches at least 2');
  process.exit(2);
}

const groups = new Map<number, readonly Sample[]>();
const groupOf = (index: number): readonly Sample[] => {
  let group = groups.get(index);
  if (group === undefined) {
    group = samplesOf(SWE_LIKE, seed, index, SAMPLES);
    groups.set(index, group);
  }
  return group;
};
const sumMs = (chosen: readonly (readonly Sample[])[]): number => chosen.flat().reduce((sum, { ms }) => sum + ms, 0);
const meanMs = (chosen: readonly (readonly Sample[])[]): number => sumMs(chosen) / chosen.flat().length;
const population = Array.from({ length: POPULATION }, (_, index) => samplesOf(SWE_LIKE, seed, index, SAMPLES));
const informative = population.filter(isInformative);

const report: ReportRow[] = [
  ['informative groups', round(informative.length / POPULATION, 3), `${SWE_LIKE.name}, ${SAMPLES} samples per group`],
];
const keys: Record<string, unknown> = {};
let staleGroups = 0;
let bias = Number.NaN;
for (const workers of [64, 512]) {
  const plan: Plan = { workers, batchGroups: BATCH_GROUPS, batches };
  const bestMs = optimumMs(groupOf, plan);
  const batchMs = batchByBatchMs(groupOf, plan);
  const run = await runStream(groupOf, SAMPLES, plan, MAX_STALENESS);
  const perBatch = (ms: number): number => round(ms / batches / 60_000, 1);
  staleGroups += run.staleness.filter((steps) => steps > MAX_STALENESS).length;
  const runBias = meanMs(run.rows.map(groupOf)) / meanMs(informative);
  if (workers === 64) bias = runBias;
  report.push(
    [`${workers} workers: optimum, min per batch`, perBatch(bestMs)],
    ['  floe, min per batch', perBatch(run.totalMs), `${round(run.totalMs / bestMs, 3)} of the optimum`],
    ['  batch by batch, min per batch', perBatch(batchMs), `${round(batchMs / run.totalMs, 2)} times as long as floe`],
    ['  staleness, mean', round(run.staleness.reduce((sum, steps) => sum + steps, 0) / run.staleness.length)],
    ['  staleness, 95th percentile', percentile(run.staleness, 0.95) ?? 0, `largest ${Math.max(...run.staleness)}`],
    ['  groups started again', run.expired],
    ['  length bias', round(runBias, 3), 'mean duration of handed groups over that of all informative ones'],
    ['  useful share', round(sumMs(run.rows.map(groupOf)) / run.workedMs, 3), 'work of sessions that reached a batch'],
  );
  keys[`t_over_optimum_${workers}`] = round(run.totalMs / bestMs, 3);
  keys[`batch_over_floe_${workers}`] = round(batchMs / run.totalMs, 2);
  keys[`length_bias_${workers}`] = round(runBias, 3);
}
printReport(`dapo: ${batches} batches of ${BATCH_GROUPS} groups, seed ${seed}`, report, {
  ...keys,
  length_bias: round(bias, 3),
  stale_groups: staleGroups,
});
