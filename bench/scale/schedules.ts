// Measures how throughput grows with the number of nodes. Compares the pipeline with workers that run one session at a time, and with the best
// schedule. Sandboxes, agents and evaluators only wait, for much shorter times than in real sessions.
import type { FloeClient } from '@floe-rl/client';
import { type RandomSource, systemClock } from '@floe-rl/core';
import type { TaskRequestInput } from '@floe-rl/core/schema';
import type { DispatchPolicy } from '@floe-rl/node';
import type { PoolSizes } from '#node/gateway/node/config';
import { inParallel } from '../child.ts';
import { poolAdvice } from '../schedule/pool-advice.ts';
import { bestMakespan, makespanBound, replayMakespan, type StageDurations } from '../schedule/replay.ts';
import { withServer } from './processes.ts';

/**
 * Mean duration of the stage INIT relative to the stage RUN. INIT and POSTRUN together take 0.55 of RUN, as in the workload of SkyRL-Agent's
 * published figures.
 */
const INIT_SHARE = 0.35;
const POSTRUN_SHARE = 0.2;
const RUN_WORKERS = 8;
const SUBMITTERS = 16;

/** The load of a measurement: number of sessions per node, and mean duration of an agent's run in ms. */
export type NodeLoad = { readonly perNode: number; readonly runMs: number };

/**
 * Returns the stage pool sizes of a node. INIT and POSTRUN have twice as many workers as are needed on average to keep RUN busy, because
 * durations vary. READY has one slot for each RUN worker.
 */
function pools(): PoolSizes {
  const means = { initMs: INIT_SHARE, runMs: 1, postrunMs: POSTRUN_SHARE };
  const hints = poolAdvice(means, { init: 1, run: RUN_WORKERS, postrun: 1 })?.hints ?? [];
  const workers = (stage: string): number => 2 * (hints.find((hint) => hint.stage === stage)?.needed ?? 1);
  const [init, postrun] = [workers('init'), workers('postrun')];
  return { init, ready: RUN_WORKERS, run: RUN_WORKERS, postrun };
}

/** Returns a generator of pseudorandom numbers from 0 inclusive to 1 exclusive, which depend only on the seed. */
function randomFrom(seed: number): RandomSource {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

/**
 * Returns tasks whose agents run for `runMs` on average. The duration of each stage differs from its mean by at most the share `spread` (0
 * to 1).
 */
function tasksOf(count: number, runMs: number, spread: number, seed = 1): TaskRequestInput[] {
  const random = randomFrom(seed);
  const about = (meanMs: number): number => Math.round(meanMs * (1 + spread * (2 * random() - 1)));
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

function submitAll(client: FloeClient, tasks: readonly TaskRequestInput[]): Promise<void> {
  return inParallel(tasks.length, SUBMITTERS, async (i) => {
    const task = tasks[i];
    if (task !== undefined) await client.submit(task);
  });
}

type Collected = {
  /** Monotonic time in ms at which each result arrived, in order of arrival. */
  readonly arrivals: number[];
  readonly sessions: StageDurations[];
  readonly cursor: number;
};

/** Reads the next `count` results after the cursor `after`, and records when each result arrived. */
async function collect(client: FloeClient, count: number, after: number): Promise<Collected> {
  const arrivals: number[] = [];
  const sessions: StageDurations[] = [];
  let cursor = after;
  for await (const result of client.results({ after })) {
    if (result.outcome !== 'completed') throw new Error(`${result.outcome}: ${result.error?.message}`);
    arrivals.push(systemClock.monotonicMs());
    const { init_ms, running_ms, postrun_ms } = result.timing;
    sessions.push({ initMs: init_ms ?? 0, runMs: running_ms ?? 0, postrunMs: postrun_ms ?? 0 });
    cursor = result.cursor ?? cursor;
    if (arrivals.length === count) break;
  }
  return { arrivals, sessions, cursor };
}

/**
 * Returns the rate in sessions per second over the middle half of the results, so that the times in which the stages fill and empty are not
 * included.
 */
function steadyRate(arrivals: readonly number[]): number {
  const [from, to] = [Math.floor(arrivals.length / 4), Math.floor((arrivals.length * 3) / 4)];
  return (to - from) / (((arrivals[to] ?? 0) - (arrivals[from] ?? 0)) / 1000);
}

export type Rate = { readonly perSecond: number; readonly meanRunMs: number };

/** Measures how many sessions per second `nodes` nodes run while sessions are always queued. */
function rateOf(nodes: number, { perNode, runMs }: NodeLoad, policy: DispatchPolicy = 'pipeline'): Promise<Rate> {
  return withServer({}, async ({ client, startNode }) => {
    const tasks = tasksOf(nodes * perNode, runMs, 0.3);
    await submitAll(client, tasks);
    const options = { mode: 'staged' as const, policy, pools: pools() };
    // The collection of results begins before the nodes start. If it began later, all results that exist by then would arrive at the same
    // time and distort the rate.
    const collected = collect(client, tasks.length, 0);
    await Promise.all(Array.from({ length: nodes }, (_, i) => startNode({ ...options, nodeId: `node-${i}` })));
    const { arrivals, sessions } = await collected;
    const meanRunMs = sessions.reduce((sum, { runMs }) => sum + runMs, 0) / sessions.length;
    return { perSecond: steadyRate(arrivals), meanRunMs };
  });
}

export type NodeScaling = {
  readonly rates: readonly (Rate & { readonly nodes: number })[];
  /**
   * Scaling efficiency: the throughput of k nodes divided by k times the throughput of one node; 1 is perfect. This is the smallest value over
   * all measured k.
   */
  readonly scaling: number;
};

/** Measures the throughput with 1, 2 and 4 nodes. */
export async function nodeScaling(load: NodeLoad): Promise<NodeScaling> {
  const rates: (Rate & { readonly nodes: number })[] = [];
  for (const nodes of [1, 2, 4]) rates.push({ nodes, ...(await rateOf(nodes, load)) });
  const one = rates[0]?.perSecond ?? 0;
  return { rates, scaling: Math.min(...rates.map(({ nodes, perSecond }) => perSecond / (nodes * one))) };
}

/**
 * Runs the same sessions twice with the same number of RUN workers: with the policy `pipeline`, and with workers that each run one session
 * at a time (`bounded_batch`).
 */
export async function pipelineGain(load: NodeLoad): Promise<{ pipeline: Rate; bounded: Rate; gain: number }> {
  const pipeline = await rateOf(1, load);
  const bounded = await rateOf(1, load, 'bounded_batch');
  return { pipeline, bounded, gain: pipeline.perSecond / bounded.perSecond };
}

export type Makespan = {
  readonly measuredMs: number;
  readonly bestMs: number;
  readonly boundMs: number;
  readonly boundedBatchMs: number;
  readonly batchMs: number;
};

/**
 * Measures the makespan of a fixed set of sessions on one node that starts the longest expected sessions first. The sessions run twice: the
 * server learns their durations in the first run, as it does in an earlier epoch of training, and the second run is measured. The measured
 * durations are then replayed under other schedules.
 */
export function makespan({
  sessions,
  runMs,
}: {
  readonly sessions: number;
  readonly runMs: number;
}): Promise<Makespan> {
  return withServer({ config: { queue_order: 'longest_first' } }, async ({ client, startNode }) => {
    const tasks = tasksOf(sessions, runMs, 0.5, 7);
    const options = { mode: 'staged' as const, pools: pools() };
    await submitAll(client, tasks);
    const first = await startNode({ ...options, nodeId: 'first' });
    const { cursor } = await collect(client, tasks.length, 0);
    await first.close();
    await submitAll(client, tasks);
    const node = await startNode({ ...options, nodeId: 'second' });
    const { arrivals, sessions: measured } = await collect(client, tasks.length, cursor);
    const measuredMs = (arrivals.at(-1) ?? 0) - node.readyMs;
    return {
      measuredMs,
      bestMs: bestMakespan(measured, options.pools),
      boundMs: makespanBound(measured, options.pools),
      boundedBatchMs: replayMakespan(measured, options.pools, 'bounded_batch'),
      batchMs: replayMakespan(measured, options.pools, 'batch'),
    };
  });
}
