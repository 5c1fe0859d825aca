// How nodes add up, what the pipeline gains over workers that do one session at a time, and how near it is to the best schedule.
// Time is compressed: a second of a real session is some milliseconds here. Sandboxes, agents and evaluators only wait.
import { poolHints } from '../../dist/core/pool-hints.js';
import { bestMakespan, makespanBound, replayMakespan } from '../../dist/core/schedule-replay.js';
import { startedAt, withServer } from './processes.mjs';

/** Init and evaluation together take 0.55 of the run, which is the workload that SkyRL-Agent publishes figures of. */
const INIT_SHARE = 0.35;
const POSTRUN_SHARE = 0.2;
const RUN_WORKERS = 8;

/** Twice the INIT and POSTRUN workers that keep RUN busy on average, for durations vary, and a READY place for each RUN worker. */
function pools() {
  const means = { initMs: INIT_SHARE, runMs: 1, postrunMs: POSTRUN_SHARE };
  const { hints } = poolHints(means, { init: 1, run: RUN_WORKERS, postrun: 1 });
  const [init, postrun] = hints.map(({ needed }) => 2 * needed);
  return { init, ready: RUN_WORKERS, run: RUN_WORKERS, postrun };
}

/** Numbers in [0, 1) that are the same in every run. */
function randomFrom(seed) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

/** Tasks whose agents run for `runMs` on average. `spread`: each duration is its mean, more or less by up to this share. */
function tasksOf(count, runMs, spread, seed = 1) {
  const random = randomFrom(seed);
  const about = (meanMs) => Math.round(meanMs * (1 + spread * (2 * random() - 1)));
  return Array.from({ length: count }, (_, i) => ({
    instruction: '',
    duration_key: `row-${i}`,
    agent: { harness: 'shell', custom_shell: 'true' },
    evaluator: { strategy: 'session_completed' },
    metadata: {
      init_ms: about(INIT_SHARE * runMs),
      run_ms: about(runMs),
      postrun_ms: about(POSTRUN_SHARE * runMs),
    },
  }));
}

async function submitAll(client, tasks) {
  const lanes = Array.from({ length: 16 }, async (_, lane) => {
    for (let i = lane; i < tasks.length; i += 16) await client.submit(tasks[i]);
  });
  await Promise.all(lanes);
}

/** Reads `count` results as they come: when each came, and what its stages took. */
async function collect(client, count, after) {
  const arrivals = [];
  const sessions = [];
  let cursor = after;
  for await (const result of client.results({ after })) {
    if (result.outcome !== 'completed') throw new Error(`${result.outcome}: ${result.error?.message}`);
    arrivals.push(performance.now());
    const { init_ms, running_ms, postrun_ms } = result.timing;
    sessions.push({ initMs: init_ms, runMs: running_ms, postrunMs: postrun_ms });
    cursor = result.cursor;
    if (arrivals.length === count) break;
  }
  return { arrivals, sessions, cursor };
}

/** Sessions per second of the middle half: neither the filling of the stages nor their emptying counts. */
function steadyRate(arrivals) {
  const [from, to] = [Math.floor(arrivals.length / 4), Math.floor((arrivals.length * 3) / 4)];
  return (to - from) / ((arrivals[to] - arrivals[from]) / 1000);
}

/** Rate of `nodes` nodes with always enough to do. */
function rateOf({ nodes, perNode, runMs, policy = 'pipeline' }) {
  return withServer({}, async ({ client, startNode }) => {
    const tasks = tasksOf(nodes * perNode, runMs, 0.3);
    await submitAll(client, tasks);
    const options = { mode: 'staged', policy, pools: pools() };
    // From before the nodes begin: results that have waited come in a heap.
    const collected = collect(client, tasks.length, 0);
    await Promise.all(Array.from({ length: nodes }, (_, i) => startNode({ ...options, nodeId: `node-${i}` })));
    const { arrivals, sessions } = await collected;
    const meanRunMs = sessions.reduce((sum, { runMs }) => sum + runMs, 0) / sessions.length;
    return { perSecond: steadyRate(arrivals), meanRunMs };
  });
}

/** `load`: sessions per node, and the mean run. The throughput of 1, 2 and 4 nodes; `scaling` is the worst of k nodes over k times one. */
export async function nodeScaling(load) {
  const rates = [];
  for (const nodes of [1, 2, 4]) rates.push({ nodes, ...(await rateOf({ nodes, ...load })) });
  const [{ perSecond: one }] = rates;
  return { rates, scaling: Math.min(...rates.map(({ nodes, perSecond }) => perSecond / (nodes * one))) };
}

/** `load` as above. The same sessions with the same RUN workers, in a pipeline and with bounded workers. */
export async function pipelineGain(load) {
  const pipeline = await rateOf({ nodes: 1, ...load });
  const bounded = await rateOf({ nodes: 1, ...load, policy: 'bounded_batch' });
  return { pipeline, bounded, gain: pipeline.perSecond / bounded.perSecond };
}

/**
 * A finite job on one node, longest expected first. The durations are learned by running the job once before, as an epoch of
 * training does; then they are measured and replayed.
 */
export function makespan({ sessions, runMs }) {
  return withServer({ config: { queue_order: 'longest_first' } }, async ({ client, startNode }) => {
    const tasks = tasksOf(sessions, runMs, 0.5, 7);
    const options = { mode: 'staged', pools: pools() };
    await submitAll(client, tasks);
    const teacher = await startNode({ ...options, nodeId: 'first' });
    const { cursor } = await collect(client, tasks.length, 0);
    await teacher.close();
    await submitAll(client, tasks);
    const node = await startNode({ ...options, nodeId: 'second' });
    const from = startedAt(node);
    const { arrivals, sessions: measured } = await collect(client, tasks.length, cursor);
    const measuredMs = arrivals.at(-1) - from;
    return {
      measuredMs,
      bestMs: bestMakespan(measured, options.pools),
      boundMs: makespanBound(measured, options.pools),
      boundedBatchMs: replayMakespan(measured, options.pools, 'bounded_batch'),
      batchMs: replayMakespan(measured, options.pools, 'batch'),
    };
  });
}
