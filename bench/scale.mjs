// What a rollout server and its nodes carry: rates, memory, how nodes add up, and how close the pipeline is to the best schedule.
// Server and nodes are processes of their own; sandboxes, agents and evaluators only take time.
//   node bench/scale.mjs [--json] [--quick] [--database sqlite|postgres] [--only submit,sqlite,postgres,memory,nodes,pipeline,makespan]
import { availableParallelism, loadavg } from 'node:os';
import { startPostgres, whyNoPostgres } from '../verify/services/postgres-cluster.mjs';
import { machine, median, printReport, round } from './report.mjs';
import { lifeRate, memory, submitRate } from './scale/rates.mjs';
import { makespan, nodeScaling, pipelineGain } from './scale/schedules.mjs';

const option = (name) => {
  const at = process.argv.indexOf(`--${name}`);
  return at === -1 ? null : (process.argv[at + 1] ?? null);
};
const quick = process.argv.includes('--quick');
const only = option('only')?.split(',') ?? null;
const database = option('database');
if (database !== null && database !== 'sqlite' && database !== 'postgres') {
  throw new Error('--database: sqlite or postgres');
}

/** Of several rounds the median counts: other programs on the machine slow some of them down. */
const ROUNDS = quick ? 1 : 3;

async function rounds(measure, rate) {
  const all = [];
  for (let i = 0; i < ROUNDS; i++) all.push(await measure());
  const middle = median(all.map(rate));
  return all.find((one) => rate(one) === middle);
}

/** A second of a real run is some milliseconds here; what the server does meanwhile is not compressed, so less would be unfair to it. */
const RUN_MS = quick ? 400 : 1_000;
const LOAD = { runMs: RUN_MS, perNode: quick ? 120 : 240 };

const life = (store) =>
  rounds(
    () => lifeRate({ sessions: quick ? 1_600 : 4_800, ...store }),
    (one) => one.perSecond,
  );

function lifeRows(name, figures) {
  const { perSecond, serverCpuMsEach, nodesCpuMsEach, clientCpuMsEach } = figures;
  return [
    [`sessions per second, ${name}`, round(perSecond, 0), 'submit, lease, stages, delivery, collection; no-op harness'],
    [
      '  CPU ms per session',
      round(serverCpuMsEach),
      `of the server; nodes ${round(nodesCpuMsEach)}, trainer ${round(clientCpuMsEach)}`,
    ],
  ];
}

/** Each part: its figures under the report's keys, and its rows. */
const PARTS = {
  async submit() {
    const { grouped, single } = await rounds(
      () => submitRate({ sessions: quick ? 2_000 : 8_000 }),
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
    return { keys: { sessions_per_s_sqlite: round(figures.perSecond, 0) }, rows: lifeRows('SQLite', figures) };
  },
  async postgres() {
    const why = whyNoPostgres();
    if (why !== null) return { keys: { sessions_per_s_postgres: null }, rows: [['PostgreSQL', '-', why]] };
    const cluster = await startPostgres();
    try {
      const figures = await rounds(
        async () => lifeRate({ sessions: quick ? 1_600 : 4_800, database: await cluster.createDatabase() }),
        (one) => one.perSecond,
      );
      return { keys: { sessions_per_s_postgres: round(figures.perSecond, 0) }, rows: lifeRows('PostgreSQL', figures) };
    } finally {
      await cluster.stop();
    }
  },
  async memory() {
    const { liveKb, queuedKb, allKb, allHeapKb } = await memory({ queued: 10_000, live: 1_000 });
    return {
      keys: { kb_per_session: round(allKb, 1) },
      rows: [
        ['KB of the server per session', round(allKb, 1), '10,000 queued and 1,000 live; resident set'],
        ['  per live session', round(liveKb, 1), '1,000 running'],
        ['  per queued session', round(queuedKb, 1), '10,000 more waiting'],
        ['  heap per session', round(allHeapKb, 1), 'of all'],
      ],
    };
  },
  async nodes() {
    const { rates, scaling } = await nodeScaling(LOAD);
    return {
      keys: { node_scaling: round(scaling, 3) },
      rows: [
        ...rates.map(({ nodes, perSecond, meanRunMs }) => [
          `sessions per second, ${nodes} node${nodes === 1 ? '' : 's'}`,
          round(perSecond, 1),
          `8 RUN workers each, mean run ${round(meanRunMs, 0)} ms`,
        ]),
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
      sessions: quick ? 240 : 400,
      runMs: RUN_MS,
    });
    return {
      keys: { makespan_over_optimum: round(measuredMs / bestMs, 3) },
      rows: [
        [
          'makespan of the pipeline, ms',
          round(measuredMs, 0),
          'longest expected first, durations known from a run before',
        ],
        ['  best schedule replayed, ms', round(bestMs, 0), 'of the measured durations, nothing else taking time'],
        ['  over the best schedule', round(measuredMs / bestMs, 3)],
        ['  over the lower bound', round(measuredMs / boundMs, 3), 'no schedule of these durations is shorter'],
        ['  bounded workers replayed, ms', round(boundedBatchMs, 0), `in batches ${round(batchMs, 0)}`],
      ],
    };
  },
};

const wanted = Object.keys(PARTS).filter((name) => {
  if (only !== null) return only.includes(name);
  return database === null || (name !== 'sqlite' && name !== 'postgres') || name === database;
});
console.error(`measuring on ${machine().cpu}; load ${round(loadavg()[0], 1)} on ${availableParallelism()} cores`);
const rows = [];
const keys = {};
for (const name of wanted) {
  const part = await PARTS[name]();
  rows.push(...part.rows);
  Object.assign(keys, part.keys);
  console.error(`  ${name} done; load ${round(loadavg()[0], 1)}`);
}
printReport('bench:scale: rollout server and nodes in processes of their own, time-compressed sandboxes', rows, keys);
