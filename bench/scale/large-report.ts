// The part `large` of the bench: the cost of many finished sessions in the database.
import { startPostgres, whyNoPostgres } from '../../verify/services/postgres-cluster.ts';
import { median, type Part, type ReportRow, round } from '../report.ts';
import { GROUP } from './finished-rows.ts';
import {
  discard,
  FEW_TASKS,
  type Filled,
  fill,
  type Load,
  type Measured,
  type RoundFigures,
  retention,
  withFilled,
} from './large.ts';

export type LargeOptions = {
  readonly database: 'sqlite' | 'postgres';
  /** Number of finished sessions. */
  readonly finished: number;
  readonly queued: number;
  readonly rounds: number;
  readonly load: Load;
};

/** Number of tasks that retention removes: from the database with few sessions, and the maximum from the database with many. */
const OLD_TASKS = { few: 1_000, many: 12_500 };
/** Number of sessions for which the key `claims_per_s_10m` is reported. */
const TEN_MILLION = 10_000_000;

/** Settings of PostgreSQL: memory for a database of this size, and so few checkpoints that they do not slow the filling down. */
const SETTINGS = {
  shared_buffers: '2GB',
  maintenance_work_mem: '512MB',
  max_wal_size: '8GB',
  checkpoint_timeout: '30min',
};

type Name = keyof RoundFigures;

const ROWS: readonly (readonly [name: Name, label: string, remark: string])[] = [
  ['submitsPerSecond', 'sessions submitted per second', 'tasks of 8 samples'],
  ['claimsPerSecond', 'sessions claimed per second', '4 nodes, 16 sessions per request'],
  ['livesPerSecond', 'sessions per second, whole life', '2 nodes, no-op harness'],
  ['lifeCpuMs', '  CPU ms of the server each', ''],
  ['middlePerSecond', 'results read per second, from the middle', '100 per page, 8 kB trajectories'],
  ['endPerSecond', 'results read per second, near the end', 'the same'],
  ['listMs', 'list of newest ended sessions, ms', 'GET /sessions'],
  ['totalsMs', 'sums by hour, ms', 'GET /sessions/totals?by=hour'],
  ['statusMs', 'status, ms', 'GET /rollout/status'],
  ['tasksMs', 'list of tasks, ms', 'GET /tasks'],
];

/** Fills one database with few and one with many finished sessions, and measures both in turns. */
export async function largeStore(options: LargeOptions): Promise<Part> {
  const why = options.database === 'postgres' ? whyNoPostgres() : null;
  if (why !== null) return { keys: { claims_per_s_10m: null }, rows: [['PostgreSQL', '-', why]] };
  const cluster = options.database === 'postgres' ? await startPostgres({ settings: SETTINGS }) : null;
  const kept: Filled[] = [];
  const filled = async (tasks: number, oldTasks: number, queued: number): Promise<Filled> => {
    const database = (await cluster?.createDatabase()) ?? null;
    const one = await fill({ database, tasks, oldTasks, queued });
    kept.push(one);
    return one;
  };
  try {
    const tasks = Math.max(FEW_TASKS, Math.floor(options.finished / GROUP));
    const few = await filled(FEW_TASKS, OLD_TASKS.few, Math.min(options.queued, 20_000));
    const many = await filled(tasks, Math.min(OLD_TASKS.many, Math.floor(tasks / 2.5)), options.queued);
    return await compare(few, many, options);
  } finally {
    for (const one of kept) await discard(one);
    await cluster?.stop();
  }
}

async function compare(few: Filled, many: Filled, { rounds, load, database }: LargeOptions): Promise<Part> {
  const [ofFew, ofMany, wide] = await withFilled(few, (small) =>
    withFilled(many, async (large) => {
      const figures = await inTurns(small, large, rounds, load);
      return [...figures, await wideReads(large, rounds)] as const;
    }),
  );
  const removal = { few: await retention(few), many: await retention(many) };
  const finished = many.tasks * GROUP;
  const ratio = (name: Name): number => {
    const ratios = ofMany.map((one, i) => one[name] / (ofFew[i]?.[name] ?? Number.NaN));
    return round(median(ratios) ?? Number.NaN, 3);
  };
  const value = (all: readonly RoundFigures[], name: Name): number =>
    round(median(all.map((one) => one[name])) ?? 0, 2);
  const mbPerSecond = median(wide.map((one) => one.mbPerSecond)) ?? 0;
  const rows = ROWS.map(([name, label, remark]): ReportRow => {
    const range = `${round(Math.min(...ofMany.map((one) => one[name])))} to ${round(Math.max(...ofMany.map((one) => one[name])))}`;
    return [label, value(ofMany, name), `${range}; few: ${value(ofFew, name)}; ratio ${ratio(name)}; ${remark}`];
  });
  const claims = value(ofMany, 'claimsPerSecond');
  return {
    keys: {
      finished_sessions: finished,
      claims_per_s_10m: finished >= TEN_MILLION ? claims : null,
      claims_per_s_large: claims,
      bytes_per_finished_session: round(many.bytes / finished, 0),
      ...Object.fromEntries(ROWS.map(([name]) => [`ratio_${name}`, ratio(name)])),
      cursor_mb_per_s: round(mbPerSecond, 0),
      cursor_mb_per_cpu_s: round(median(wide.map((one) => one.mbPerCpuSecond)) ?? 0, 0),
      cursor_growth_mb: round(Math.max(...wide.map((one) => one.growthMb)), 0),
      retention_sessions_per_s: round(removal.many.sessionsPerSecond, 0),
      retention_submit_p99_ms: round(removal.many.submitP99Ms, 1),
    },
    rows: [
      [`finished sessions in ${database}`, finished, `few: ${FEW_TASKS * GROUP}`],
      ['  bytes per session', round(many.bytes / finished, 0), `${round(many.bytes / 1e9)} GB in all, without blobs`],
      ...rows,
      [
        'results with 1 MiB each, MB per second',
        round(mbPerSecond, 0),
        `of ${wide.map((one) => round(one.mbPerSecond, 0))}`,
      ],
      ['  per CPU second of the server', round(median(wide.map((one) => one.mbPerCpuSecond)) ?? 0, 0)],
      [
        '  growth of its memory, MB',
        round(Math.max(...wide.map((one) => one.growthMb)), 0),
        'largest resident set less before',
      ],
      ...(['few', 'many'] as const).flatMap((name): ReportRow[] => {
        const { sessionsPerSecond, submitP50Ms, submitP99Ms, submitMaxMs } = removal[name];
        const times = [submitP50Ms, submitP99Ms, submitMaxMs].map((ms) => round(ms, 1));
        return [
          [
            `sessions removed per second, ${name}`,
            round(sessionsPerSecond, 0),
            `a submission meanwhile takes ${times[0]} ms, p99 ${times[1]}, at most ${times[2]}`,
          ],
        ];
      }),
    ],
  };
}

async function inTurns(small: Measured, large: Measured, rounds: number, load: Load) {
  const figures: [few: RoundFigures[], many: RoundFigures[]] = [[], []];
  for (let i = 0; i < rounds; i++) {
    figures[0].push(await small.round(load));
    figures[1].push(await large.round(load));
  }
  return figures;
}

async function wideReads(large: Measured, rounds: number) {
  const all = [];
  for (let i = 0; i < rounds; i++) all.push(await large.wideRead());
  return all;
}
