// Replays the measured stage durations of finished sessions under each dispatch policy, and compares the makespans with the makespan of the
// best known schedule.
//
//   floe results --json > results.jsonl
//   npm run bench -- schedule results.jsonl --init 8 --ready 4 --run 16 --postrun 8 [--makespan MS] [--json]
import { readFileSync } from 'node:fs';
import type { SessionResult } from '@floe-rl/core/schema';
import { printReport, type ReportRow, round } from '../report.ts';
import { poolAdvice } from './pool-advice.ts';
import { bestMakespan, makespanBound, type ReplayPolicy, replayMakespan, type StageDurations } from './replay.ts';

const POLICIES: readonly ReplayPolicy[] = ['pipeline', 'batch', 'bounded_batch'];

const file = process.argv[2];
const option = (name: string): number | null => {
  const at = process.argv.indexOf(`--${name}`);
  return at === -1 ? null : Number(process.argv[at + 1]);
};
const size = (name: string): number => option(name) ?? Number.NaN;
const pools = { init: size('init'), ready: option('ready') ?? 0, run: size('run'), postrun: size('postrun') };
if (file === undefined || Object.values(pools).some((count) => !Number.isInteger(count) || count < 0)) {
  console.error(
    'usage: npm run bench -- schedule RESULTS.jsonl --init N --run N --postrun N [--ready N] [--makespan MS] [--json]',
  );
  process.exit(2);
}

const results: SessionResult[] = readFileSync(file, 'utf8')
  .split('\n')
  .filter(Boolean)
  .map((line) => JSON.parse(line));
// Sessions that ended before one of the stages are left out, because they have no duration for that stage.
const sessions: StageDurations[] = results.flatMap(({ timing: { init_ms, running_ms, postrun_ms } }) =>
  init_ms === null || running_ms === null || postrun_ms === null
    ? []
    : [{ initMs: init_ms, runMs: running_ms, postrunMs: postrun_ms }],
);
if (sessions.length === 0) {
  console.error(`${file}: no session went through all stages`);
  process.exit(1);
}

const mean = (stage: keyof StageDurations): number =>
  sessions.reduce((sum, session) => sum + session[stage], 0) / sessions.length;
const means = { initMs: mean('initMs'), runMs: mean('runMs'), postrunMs: mean('postrunMs') };
const best = bestMakespan(sessions, pools);
const measured = option('makespan');
const over = (ms: number): string => `${round(ms / best, 3)} of the best`;
const replayed = POLICIES.map((policy) => ({ policy, ms: replayMakespan(sessions, pools, policy) }));
const advice = poolAdvice(means, pools);
printReport(
  `schedule: ${sessions.length} of ${results.length} sessions replayed`,
  [
    ...(measured === null ? [] : [['measured, s', round(measured / 1000, 1), over(measured)] as const]),
    ...replayed.map(({ policy, ms }): ReportRow => [`${policy}, s`, round(ms / 1000, 1), over(ms)]),
    ['best known, s', round(best / 1000, 1), ''],
    ['lower bound, s', round(makespanBound(sessions, pools) / 1000, 1), 'no schedule is shorter'],
    ...(advice === null
      ? []
      : [
          [
            'bottleneck',
            advice.bottleneck,
            `${round(advice.sessionsPerSecond, 2)} sessions per second at most`,
          ] as const,
          ...advice.hints.map(
            ({ stage, size: workers, needed }): ReportRow => [`  ${stage} workers`, workers, `${needed} keep RUN busy`],
          ),
        ]),
  ],
  {
    makespan_over_optimum: round((measured ?? replayMakespan(sessions, pools, 'pipeline')) / best, 3),
    best_ms: round(best, 0),
    ...Object.fromEntries(replayed.map(({ policy, ms }) => [`${policy}_ms`, round(ms, 0)])),
  },
);
