// Measures the capacity of a rollout server and its nodes: session rates, memory, throughput by number of nodes, and makespan of a job
// relative to the best schedule. Server and nodes are separate processes. Sandboxes, agents and evaluators do no work and only wait.
//
//   npm run bench -- scale [--json] [--quick] [--database sqlite|postgres]
//                          [--only submit,sqlite,postgres,replica,neighbours,memory,nodes,pipeline,makespan,large] [--finished N] [--queued N]
import { availableParallelism, loadavg } from 'node:os';
import { knownNames } from '../../tools/known-names.ts';
import { wholeNumber } from '../../tools/whole-number.ts';
import { startPostgres, whyNoPostgres } from '../../verify/services/postgres-cluster.ts';
import { machine, median, type PairedRatio, type Part, printReport, type ReportRow, round } from '../report.ts';
import { commitRate } from './commits.ts';
import { largeStore } from './large-report.ts';
import { neighbours } from './neighbours.ts';
import type { ServerOptions } from './processes.ts';
import { type LifeFigures, lifeRate, memory, submitRate } from './rates.ts';
import { costOfNode, ENGINES, replicaCosts, TYPICAL } from './replica.ts';
import { makespan, nodeScaling, pipelineGain } from './schedules.ts';

const option = (name: string): string | null => {
  const at = process.argv.indexOf(`--${name}`);
  return at === -1 ? null : (process.argv[at + 1] ?? null);
};
const isQuick = process.argv.includes('--quick');
const database = option('database');
if (database !== null && database !== 'sqlite' && database !== 'postgres') {
  throw new Error('--database: sqlite or postgres');
}

/** Number of rounds of each rate measurement. The median round is reported, because other programs on the machine slow some rounds down. */
const ROUNDS = isQuick ? 1 : 3;

async function rounds<T>(measure: () => Promise<T>, rate: (one: T) => number): Promise<T> {
  const all: T[] = [];
  for (let i = 0; i < ROUNDS; i++) all.push(await measure());
  const middle = median(all.map(rate));
  const found = all.find((one) => rate(one) === middle);
  if (found === undefined) throw new Error('there was no round');
  return found;
}

/**
 * Mean duration of an agent's run in ms. Real runs take minutes and are shortened here. Much shorter runs would overstate the server's
 * share of the time, because the server's own work is not shortened.
 */
const RUN_MS = isQuick ? 400 : 1_000;
const LOAD = { runMs: RUN_MS, perNode: isQuick ? 120 : 240 };

const life = (store: ServerOptions): Promise<LifeFigures> =>
  rounds(
    () => lifeRate(isQuick ? 1_600 : 4_800, store),
    (one) => one.perSecond,
  );

/** Measures the floor of a rate: transactions per second of one row each, without a server. */
const floor = (database: string | null): Promise<number> => commitRate(database, isQuick ? 1_000 : 5_000);

function lifeRows(name: string, figures: LifeFigures, commitsPerSecond: number): ReportRow[] {
  const { perSecond, serverCpuMsEach, nodesCpuMsEach, clientCpuMsEach } = figures;
  return [
    [
      `a session's life over one commit, ${name}`,
      round(commitsPerSecond / perSecond, 1),
      `the floor is a durable transaction of one row: ${round(commitsPerSecond, 0)} per second`,
    ],
    [`sessions per second, ${name}`, round(perSecond, 0), 'submit, lease, stages, delivery, collection; no-op harness'],
    [
      '  CPU ms per session',
      round(serverCpuMsEach),
      `of the server; nodes ${round(nodesCpuMsEach)}, trainer ${round(clientCpuMsEach)}`,
    ],
  ];
}

const PARTS: Readonly<Record<string, () => Promise<Part>>> = {
  async submit() {
    const { grouped, single } = await rounds(
      () => submitRate(isQuick ? 2_000 : 8_000),
      (one) => one.grouped.perSecond,
    );
    return {
      keys: { submit_per_s: round(grouped.perSecond, 0) },
      rows: [
        ['sessions submitted per second', round(grouped.perSecond, 0), 'tasks of 8 samples, SQLite with full sync'],
        ['  CPU ms per session', round(grouped.cpuMsEach, 3), 'of the server'],
        ['  as tasks of one sample', round(single.perSecond, 0), `CPU ms each ${round(single.cpuMsEach)}`],
      ],
    };
  },
  async sqlite() {
    const figures = await life({});
    const commits = await floor(null);
    return {
      keys: {
        sessions_per_s_sqlite: round(figures.perSecond, 0),
        life_over_commit_sqlite: round(commits / figures.perSecond, 1),
      },
      rows: lifeRows('SQLite', figures, commits),
    };
  },
  async postgres(): Promise<Part> {
    const why = whyNoPostgres();
    if (why !== null) return { keys: { sessions_per_s_postgres: null }, rows: [['PostgreSQL', '-', why]] };
    const cluster = await startPostgres();
    try {
      const figures = await rounds(
        async () => lifeRate(isQuick ? 1_600 : 4_800, { database: await cluster.createDatabase() }),
        (one) => one.perSecond,
      );
      const commits = await floor(await cluster.createDatabase());
      return {
        keys: {
          sessions_per_s_postgres: round(figures.perSecond, 0),
          life_over_commit_postgres: round(commits / figures.perSecond, 1),
        },
        rows: lifeRows('PostgreSQL', figures, commits),
      };
    } finally {
      await cluster.stop();
    }
  },
  async replica(): Promise<Part> {
    const why = whyNoPostgres();
    if (why !== null) return { keys: { replica_nodes_max: null }, rows: [['replica', '-', why]] };
    const cluster = await startPostgres();
    try {
      const size = isQuick
        ? { nodes: 100, callsPerNode: 5, livePerNode: 50, seconds: 10 }
        : { nodes: 1_000, callsPerNode: 2, livePerNode: 20, seconds: 20 };
      const figures = await replicaCosts(cluster, size);
      const node = costOfNode(figures);
      const row = (
        name: string,
        { server, database }: { server: number; database: number },
        note: string,
      ): ReportRow => [name, round(server, 3), `of the server; PostgreSQL ${round(database, 3)}; ${note}`];
      const { sessions, sessionSeconds } = TYPICAL;
      return {
        keys: {
          replica_nodes_max: Math.floor(1_000 / node.server),
          postgres_nodes_max: Math.floor(1_000 / node.database),
          idle_ms_per_node_s: round(figures.heartbeats.server, 3),
          idle_ms_per_node_s_200_engines: round(figures.engines.server, 3),
          repeated_over_changed_engines: round(figures.enginesRepeated.server / figures.engines.server, 1),
          ms_per_lease: round(figures.lease.server, 3),
          ms_per_result: round(figures.result.server, 3),
          ms_per_live_session_s: round(figures.liveSession.server, 4),
        },
        rows: [
          row('CPU ms per node and second, idle', figures.heartbeats, `heartbeats of ${size.nodes} nodes`),
          row('  with held lease requests', figures.waiting, 'the queue is empty'),
          row('  the same, two servers', figures.waitingAtTwo, 'both servers together'),
          row(`  with ${ENGINES} engines`, figures.engines, 'their calls in flight change'),
          row('  with their state in every heartbeat', figures.enginesRepeated, 'which changes each time'),
          row('CPU ms per live session and second', figures.liveSession, 'listed in heartbeats, leases renewed'),
          row('CPU ms per lease', figures.lease, 'one session a call'),
          row('CPU ms per result', figures.result, 'trajectory of 2 KB'),
          row(
            'CPU ms per typical node and second',
            node,
            `idle + ${sessions} live + ${sessions}/${sessionSeconds} (lease + result)`,
          ),
          [
            'nodes that saturate one core',
            Math.floor(1_000 / node.server),
            '1,000 ms over the line above; of the server',
          ],
          ['  of PostgreSQL', Math.floor(1_000 / node.database), 'one core of the database'],
        ],
      };
    } finally {
      await cluster.stop();
    }
  },
  async neighbours(): Promise<Part> {
    const cluster = whyNoPostgres() === null ? await startPostgres() : null;
    try {
      const { slots, restarts, idleTrainer } = await neighbours({
        newServer: async () => ({ database: (await cluster?.createDatabase()) ?? null }),
        ...(isQuick
          ? { sessions: 800, rounds: 1, nodes: 100, unread: 800 }
          : { sessions: 3_200, rounds: 3, nodes: 1_000, unread: 4_000 }),
      });
      const row = (name: string, { median: middle, greatest }: PairedRatio, note: string): ReportRow => [
        name,
        round(middle),
        `sessions per second of another trainer without over with; worst ${round(greatest)}; ${note}`,
      ];
      return {
        keys: {
          slower_beside_slots: round(slots.median),
          slower_beside_restarts: round(restarts.median),
          slower_beside_idle_trainer: round(idleTrainer.median),
          slower_worst: round(Math.max(slots.greatest, restarts.greatest, idleTrainer.greatest)),
        },
        rows: [
          row('beside requests for a million slots', slots, 'one node, call after call'),
          row('beside restarting nodes', restarts, isQuick ? '100 at once' : '1,000 at once'),
          row('beside a trainer that reads nothing', idleTrainer, 'its sessions are held back'),
        ],
      };
    } finally {
      await cluster?.stop();
    }
  },
  async memory() {
    const { liveKb, queuedKb, allKb, allHeapKb } = await memory({ queued: 10_000, live: 1_000 });
    return {
      keys: { kb_per_session: round(allKb, 1) },
      rows: [
        ['KB of the server per session', round(allKb, 1), '10,000 queued and 1,000 live; resident set'],
        ['  per live session', round(liveKb, 1), '1,000 running'],
        ['  per queued session', round(queuedKb, 1), '10,000 more queued'],
        ['  heap per session', round(allHeapKb, 1), 'of all'],
      ],
    };
  },
  async nodes() {
    const { rates, scaling } = await nodeScaling(LOAD);
    return {
      keys: { node_scaling: round(scaling, 3) },
      rows: [
        ...rates.map(
          ({ nodes, perSecond, meanRunMs }): ReportRow => [
            `sessions per second, ${nodes} node${nodes === 1 ? '' : 's'}`,
            round(perSecond, 1),
            `8 RUN workers each, mean run ${round(meanRunMs, 0)} ms`,
          ],
        ),
        ['  k nodes over k times one', round(scaling, 3), 'the worst'],
      ],
    };
  },
  async pipeline() {
    const { pipeline, bounded, gain } = await pipelineGain(LOAD);
    return {
      keys: { pipelined_over_bounded: round(gain, 2) },
      rows: [
        ['pipeline, sessions per second', round(pipeline.perSecond, 1), 'init + evaluation = 0.55 run, steady state'],
        [
          'bounded workers, sessions per second',
          round(bounded.perSecond, 1),
          'as many as the pipeline has RUN workers',
        ],
        ['  pipeline over bounded', round(gain, 2)],
      ],
    };
  },
  async makespan() {
    const { measuredMs, bestMs, boundMs, batchMs, boundedBatchMs } = await makespan({
      sessions: isQuick ? 240 : 400,
      runMs: RUN_MS,
    });
    return {
      keys: { makespan_over_optimum: round(measuredMs / bestMs, 3) },
      rows: [
        [
          'makespan of the pipeline, ms',
          round(measuredMs, 0),
          'longest expected first, durations known from an earlier run',
        ],
        ['  best schedule replayed, ms', round(bestMs, 0), 'of the measured durations, without any overhead'],
        ['  over the best schedule', round(measuredMs / bestMs, 3)],
        ['  over the lower bound', round(measuredMs / boundMs, 3), 'no schedule of these durations is shorter'],
        ['  bounded workers replayed, ms', round(boundedBatchMs, 0), `in batches ${round(batchMs, 0)}`],
      ],
    };
  },
};

/** Parts that run only when they are named, because they take long and much of the disk. */
const NAMED_PARTS: Readonly<Record<string, () => Promise<Part>>> = {
  large: () =>
    largeStore({
      database: database ?? 'postgres',
      finished: wholeNumber('finished', option('finished') ?? (isQuick ? '50000' : '1000000')),
      queued: wholeNumber('queued', option('queued') ?? (isQuick ? '20000' : '100000')),
      rounds: ROUNDS,
      load: isQuick
        ? { submits: 800, claims: 1_600, lives: 800, pages: 10 }
        : { submits: 4_000, claims: 4_000, lives: 3_200, pages: 30 },
    }),
};

const only = knownNames('only', option('only'), [...Object.keys(PARTS), ...Object.keys(NAMED_PARTS)]);
const chosen = Object.entries({ ...PARTS, ...NAMED_PARTS }).filter(([name]) => {
  if (only !== null) return only.includes(name);
  if (name in NAMED_PARTS) return false;
  return database === null || (name !== 'sqlite' && name !== 'postgres') || name === database;
});
console.error(`measuring on ${machine().cpu}; load ${round(loadavg()[0] ?? 0, 1)} on ${availableParallelism()} cores`);
const rows: ReportRow[] = [];
const keys: Record<string, number | null> = {};
for (const [name, run] of chosen) {
  const part = await run();
  rows.push(...part.rows);
  Object.assign(keys, part.keys);
  console.error(`  ${name} done; load ${round(loadavg()[0] ?? 0, 1)}`);
}
printReport('bench:scale: rollout server and nodes in processes of their own, time-compressed sandboxes', rows, keys);
