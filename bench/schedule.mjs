// Replays the stage durations of finished sessions through each dispatch policy, and through the best schedule known.
//   floe results --json > results.jsonl; node bench/schedule.mjs results.jsonl --init 8 --ready 4 --run 16 --postrun 8 [--makespan <ms>] [--json]
import { readFileSync } from 'node:fs';
import { poolHints } from '../dist/core/pool-hints.js';
import { bestMakespan, makespanBound, replayMakespan } from '../dist/core/schedule-replay.js';
import { printReport, round } from './report.mjs';

const file = process.argv[2];
const option = (name) => {
  const at = process.argv.indexOf(`--${name}`);
  return at === -1 ? null : Number(process.argv[at + 1]);
};
const pools = { init: option('init'), ready: option('ready') ?? 0, run: option('run'), postrun: option('postrun') };
if (file === undefined || Object.values(pools).some((size) => !Number.isInteger(size) || size < 0)) {
  console.error(
    'usage: node bench/schedule.mjs <results.jsonl> --init n --run n --postrun n [--ready n] [--makespan ms]',
  );
  process.exit(2);
}

const results = readFileSync(file, 'utf8')
  .split('\n')
  .filter(Boolean)
  .map((line) => JSON.parse(line));
// A session that was cut off before a stage says nothing of how long that takes.
const sessions = results.flatMap(({ timing: { init_ms, running_ms, postrun_ms } }) =>
  init_ms === null || running_ms === null || postrun_ms === null
    ? []
    : [{ initMs: init_ms, runMs: running_ms, postrunMs: postrun_ms }],
);
if (sessions.length === 0) {
  console.error(`${file}: no session went through all stages`);
  process.exit(1);
}

const mean = (stage) => sessions.reduce((sum, session) => sum + session[stage], 0) / sessions.length;
const means = { initMs: mean('initMs'), runMs: mean('runMs'), postrunMs: mean('postrunMs') };
const best = bestMakespan(sessions, pools);
const measured = option('makespan');
const over = (ms) => `${round(ms / best, 3)} of the best`;
const replayed = ['pipeline', 'batch', 'bounded_batch'].map((policy) => [
  policy,
  replayMakespan(sessions, pools, policy),
]);
const advice = poolHints(means, pools);
printReport(
  `schedule: ${sessions.length} of ${results.length} sessions replayed`,
  [
    ...(measured === null ? [] : [['measured, s', round(measured / 1000, 1), over(measured)]]),
    ...replayed.map(([policy, ms]) => [`${policy}, s`, round(ms / 1000, 1), over(ms)]),
    ['best known, s', round(best / 1000, 1), ''],
    ['lower bound, s', round(makespanBound(sessions, pools) / 1000, 1), 'no schedule is shorter'],
    ...(advice === null
      ? []
      : [
          ['bottleneck', advice.bottleneck, `${round(advice.sessionsPerSecond, 2)} sessions a second at most`],
          ...advice.hints.map(({ stage, size, needed }) => [`  ${stage} workers`, size, `${needed} keep RUN busy`]),
        ]),
  ],
  {
    makespan_over_optimum: round((measured ?? replayed[0][1]) / best, 3),
    best_ms: round(best, 0),
    ...Object.fromEntries(replayed.map(([policy, ms]) => [`${policy}_ms`, round(ms, 0)])),
  },
);
