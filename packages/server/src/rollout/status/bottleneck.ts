import type { NodeInfo, RolloutStatus, StageCounts, StageMeans } from '@floe-rl/core/schema';
import type { EngineCounts, EngineReport } from '../engines/directory.ts';

/** The fields of a node from which the bottleneck is determined. */
export type NodeFacts = Pick<
  NodeInfo,
  | 'node_id'
  | 'healthy'
  | 'draining'
  | 'refuses'
  | 'metrics'
  | 'memory_mb'
  | 'leased_memory_mb'
  | 'max_init_workers'
  | 'max_run_workers'
  | 'max_postrun_workers'
> & { readonly engines: EngineReport | null };

/** The state of the service at the time of a status request, from which the bottleneck is determined. */
export type ServiceFacts = {
  /** The error message of the store when it refused the latest transaction; `null` when the store works. */
  readonly storeFailure: string | null;
  /** Number of sessions that wait in the queue. */
  readonly queued: number;
  /** The smallest memory limit of a queued session in MiB; `null` when no session is queued. */
  readonly leastQueuedMemoryMb: number | null;
  /** Number of sessions that are leased to nodes. */
  readonly live: number;
  /**
   * The trainers that have a queued session whose retry delay is over. `heldBack` is the reason why no session of the trainer may be leased
   * now; `null` when its sessions may be leased.
   */
  readonly waiting: readonly { readonly trainer: string; readonly heldBack: string | null }[];
  readonly nodes: readonly NodeFacts[];
  readonly enginesPaused: boolean;
  readonly undeliveredCallbacks: number;
};

type Bottleneck = NonNullable<RolloutStatus['bottleneck']>;

/**
 * Determines what limits the throughput now: the stage that has waiting work and no free capacity. When several stages match, returns the last
 * of them in the pipeline, because the earlier stages only wait for it. `null` when no work waits.
 */
export function bottleneckOf(facts: ServiceFacts): Bottleneck | null {
  if (facts.storeFailure !== null) {
    return {
      name: 'store',
      why: `the store refuses transactions: ${facts.storeFailure}`,
      remedy:
        'give the store disk space or write permission, or start its database server; the service then resumes by itself',
    };
  }
  if (facts.queued === 0 && facts.live === 0) return pendingCallbacks(facts);
  const working = facts.nodes.filter((node) => node.healthy && !node.draining && node.refuses === null);
  if (working.length === 0) return facts.queued === 0 ? null : missingNodes(facts);
  return (
    unusableEngines(facts, working) ??
    fullPostrun(working) ??
    heldBackTrainer(facts) ??
    usedMemory(facts, working) ??
    busyStage(facts, working) ??
    retryBackoff(facts)
  );
}

function pendingCallbacks({ undeliveredCallbacks: count }: ServiceFacts): Bottleneck | null {
  if (count === 0) return null;
  return {
    name: 'callbacks',
    why: `all sessions have ended, but ${count} callbacks are not acknowledged`,
    remedy:
      'check why the trainer does not answer its callback_url with 2xx; the results can be read with GET /rollout/results meanwhile',
  };
}

function missingNodes({ nodes, queued }: ServiceFacts): Bottleneck {
  const refusing = nodes.find((node) => node.healthy && !node.draining && node.refuses !== null);
  if (refusing !== undefined) {
    return {
      name: 'nodes',
      why: `${queued} sessions wait and node ${refusing.node_id} accepts none: ${refusing.refuses}`,
      remedy: 'solve that on the node, which then resumes by itself, or start other nodes',
    };
  }
  const draining = nodes.filter((node) => node.draining).length;
  const why =
    nodes.length === 0
      ? 'no node is registered'
      : `of ${nodes.length} nodes ${draining} are draining and the others are silent`;
  return {
    name: 'nodes',
    why: `${queued} sessions wait and ${why}`,
    remedy: 'start gateway nodes that can reach this server',
  };
}

function unusableEngines({ enginesPaused }: ServiceFacts, working: readonly NodeFacts[]): Bottleneck | null {
  if (enginesPaused) {
    return {
      name: 'engines',
      why: 'the engines are paused, so every model call waits or is refused',
      remedy: 'resume them when the weights are in place: POST /engines/resume',
    };
  }
  const reports = working.flatMap((node) => node.engines ?? []);
  // The engines are judged only when every node has reported, because a node that has not reported yet may have engines in its configuration.
  if (reports.length < working.length) return null;
  const { known, healthy } = sumOfEngines(working);
  if (healthy > 0) return null;
  const problem = reports.flatMap((report) => report.problems)[0]?.message;
  const why = known === 0 ? 'no node has an engine' : `none of the ${known} engines responds`;
  return {
    name: 'engines',
    why: problem === undefined ? why : `${why}: ${problem}`,
    remedy: 'start an inference server and register it: floe engines add, or POST /engines',
  };
}

/** Returns the sums over the nodes; an engine counts once for each node that knows it. */
function sumOfEngines(working: readonly NodeFacts[]): EngineCounts {
  const counts = working.flatMap((node) => node.engines?.engines ?? []);
  const sum = (key: keyof EngineCounts): number => counts.reduce((total, one) => total + one[key], 0);
  return { known: sum('known'), healthy: sum('healthy'), full: sum('full') };
}

function fullPostrun(working: readonly NodeFacts[]): Bottleneck | null {
  const size = total(working, 'max_postrun_workers');
  const waiting = inStage(working, 'postrun_queue_depth');
  // A few waiting sessions are normal when a stage is busy. At least one waiting session per worker shows that the pool is too small.
  if (waiting < size) return null;
  return {
    name: 'postrun_pool',
    why: `${waiting} sessions have run and wait for one of the ${size} POSTRUN workers, which evaluate them`,
    remedy: 'raise --postrun of floe gateway (max_postrun_workers), or add nodes',
  };
}

function heldBackTrainer({ waiting }: ServiceFacts): Bottleneck | null {
  const [first] = waiting;
  if (first === undefined || waiting.some((one) => one.heldBack === null)) return null;
  return {
    name: 'trainer',
    why: `trainer ${first.trainer} is held back: ${first.heldBack}`,
    remedy: 'collect the results (GET /rollout/results, or acknowledge the callbacks), or raise the limit',
  };
}

function usedMemory(
  { queued, leastQueuedMemoryMb: least }: ServiceFacts,
  working: readonly NodeFacts[],
): Bottleneck | null {
  if (least === null) return null;
  const limits = working.map(({ memory_mb: total }) => total ?? Number.POSITIVE_INFINITY);
  const free = working.map((node, index) => (limits[index] ?? 0) - node.leased_memory_mb);
  if (free.some((mb) => mb >= least)) return null;
  const most = Math.max(...limits);
  const lack =
    most < least
      ? `the largest node has ${most} MiB for sessions`
      : `no node has more than ${Math.max(...free)} MiB left, because other sessions may use the rest`;
  return {
    name: 'memory',
    why: `each of the ${queued} queued sessions needs at least ${least} MiB of memory, and ${lack}`,
    remedy:
      'lower runtime.memory_mb and runtime.storage_mb of the tasks, raise --memory-mb of floe gateway if the machine has more, or add nodes',
  };
}

function busyStage({ queued }: ServiceFacts, working: readonly NodeFacts[]): Bottleneck | null {
  const run = total(working, 'max_run_workers');
  const inits = total(working, 'max_init_workers');
  const ahead = queued + inStage(working, 'init_inflight') + inStage(working, 'ready_depth');
  if (inStage(working, 'run_inflight') >= run && ahead > 0) {
    return (
      busyEngines(working) ?? {
        name: 'run_pool',
        why: `all ${run} RUN workers are busy and ${ahead} sessions wait for them, while the engines have free capacity`,
        remedy: 'raise --run of floe gateway (max_run_workers), or add nodes',
      }
    );
  }
  if (inStage(working, 'init_inflight') >= inits && queued > 0) {
    return {
      name: 'init_pool',
      why: `all ${inits} INIT workers are starting runtimes while RUN workers are free and ${queued} sessions wait`,
      remedy:
        'raise --init of floe gateway (max_init_workers), or make the runtimes start faster (prepared images, fewer prepare actions)',
    };
  }
  return null;
}

function busyEngines(working: readonly NodeFacts[]): Bottleneck | null {
  const { healthy, full } = sumOfEngines(working);
  if (healthy === 0 || full < healthy) return null;
  return {
    name: 'engines',
    why: `each of the ${healthy} engines has as many calls in progress as its max_concurrency allows`,
    remedy: 'add engines, or raise max_concurrency of engines that have free capacity',
  };
}

function retryBackoff({ queued, waiting }: ServiceFacts): Bottleneck | null {
  if (queued === 0 || waiting.length > 0) return null;
  return {
    name: 'retry_backoff',
    why: `all ${queued} queued sessions wait for the end of the back-off after an infrastructure failure`,
    remedy:
      'check why attempts fail (counters.retries, the errors of the sessions); retry_backoff_seconds sets the back-off',
  };
}

function total(
  nodes: readonly NodeFacts[],
  setting: 'max_init_workers' | 'max_run_workers' | 'max_postrun_workers',
): number {
  return nodes.reduce((sum, node) => sum + node[setting], 0);
}

function inStage(nodes: readonly NodeFacts[], metric: keyof StageCounts): number {
  return nodes.reduce((sum, node) => sum + node.metrics[metric], 0);
}

type PoolHint = RolloutStatus['hints'][number];

/** Minimum number of sessions from which pool sizes are suggested. With fewer, the mean durations are too uncertain. */
const MIN_SAMPLES = 20;

/**
 * Returns a suggestion for each worker pool that is too small for the RUN workers of its node. A stage needs one worker per RUN worker,
 * multiplied by the mean duration of the stage and divided by the mean duration of RUN. With fewer workers it cannot keep up with RUN. Only
 * nodes with dispatch policy `pipeline` have separate pools.
 */
export function poolHints(nodes: readonly NodeInfo[], { samples, ...means }: StageMeans): PoolHint[] {
  const { running_ms: runMs } = means;
  if (samples < MIN_SAMPLES || runMs === null || runMs <= 0) return [];
  const stages = [
    { setting: 'max_init_workers', stage: 'INIT', ms: means.init_ms ?? 0 },
    { setting: 'max_postrun_workers', stage: 'POSTRUN', ms: means.postrun_ms ?? 0 },
  ] as const;
  return nodes
    .filter((node) => node.dispatch_policy === 'pipeline')
    .flatMap((node) =>
      stages.flatMap(({ setting, stage, ms }): PoolHint[] => {
        const suggested = workersNeeded(node.max_run_workers, ms, runMs);
        const value = node[setting];
        if (value >= suggested) return [];
        const why = `${node.max_run_workers} RUN workers with ${seconds(runMs)} per session need ${suggested} workers in ${stage}, where a session takes ${seconds(ms)}`;
        return [{ node_id: node.node_id, setting, value, suggested, why }];
      }),
    );
}

/**
 * Returns the number of workers that a stage needs to keep `runWorkers` RUN workers busy, at least 1. `stageMs` and `runMs` are the mean
 * durations in milliseconds of a session in that stage and in RUN.
 */
export function workersNeeded(runWorkers: number, stageMs: number, runMs: number): number {
  // Durations are measured and not exact, so a need of 4.0000001 workers is rounded down to four.
  return Math.max(1, Math.ceil((runWorkers * stageMs) / runMs - 1e-6));
}

function seconds(ms: number): string {
  return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 0)} s`;
}
