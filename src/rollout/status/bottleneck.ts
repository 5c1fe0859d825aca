import type { Heartbeat, NodeInfo, NodeStageMetrics, RolloutStatus } from '../../schema/index.ts';

/** What of a node's stages and engines a verdict needs. */
export type WorkingNode = Pick<
  NodeInfo,
  | 'node_id'
  | 'healthy'
  | 'draining'
  | 'refuses'
  | 'metrics'
  | 'max_init_workers'
  | 'max_run_workers'
  | 'max_postrun_workers'
> & { readonly engines: Heartbeat['engines'] };

/** What is known of the service at one moment. */
export type Facts = {
  /** What the store said when it refused the latest transaction; null: it works. */
  readonly storeFailure: string | null;
  /** Sessions in the queue. */
  readonly queued: number;
  /** Sessions that nodes hold. */
  readonly live: number;
  /** Trainers with a session that may be handed out now. */
  readonly waiting: readonly { readonly trainer: string; readonly heldBack: string | null }[];
  readonly nodes: readonly WorkingNode[];
  readonly enginesPaused: boolean;
  readonly undeliveredCallbacks: number;
};

type Verdict = NonNullable<RolloutStatus['bottleneck']>;

/**
 * Names the one thing that limits throughput now: what has work before it and no room. Of several, the one that is furthest
 * down the line, since those before it only wait for it. Null: nothing waits.
 */
export function bottleneckOf(facts: Facts): Verdict | null {
  if (facts.storeFailure !== null) {
    return {
      name: 'store',
      why: `the store refuses transactions: ${facts.storeFailure}`,
      remedy: 'give it disk space, write permission or its database server back; service resumes by itself',
    };
  }
  if (facts.queued === 0 && facts.live === 0) return callbacks(facts);
  const working = facts.nodes.filter((node) => node.healthy && !node.draining && node.refuses === null);
  if (working.length === 0) return facts.queued === 0 ? null : noNodes(facts);
  return (
    unusableEngines(facts, working) ??
    postrun(working) ??
    heldBack(facts) ??
    busyStage(facts, working) ??
    backoff(facts)
  );
}

function callbacks({ undeliveredCallbacks: count }: Facts): Verdict | null {
  if (count === 0) return null;
  return {
    name: 'callbacks',
    why: `all sessions have ended, but ${count} callbacks are not acknowledged`,
    remedy: 'see why the trainer does not answer its callback_url with 2xx; the results can be read meanwhile',
  };
}

function noNodes({ nodes, queued }: Facts): Verdict {
  const refusing = nodes.find((node) => node.healthy && !node.draining && node.refuses !== null);
  if (refusing !== undefined) {
    return {
      name: 'nodes',
      why: `${queued} sessions wait and node ${refusing.node_id} takes none: ${refusing.refuses}`,
      remedy: 'put that right on the node, which goes on by itself, or start other nodes',
    };
  }
  const draining = nodes.filter((node) => node.draining).length;
  const why =
    nodes.length === 0
      ? 'no node is registered'
      : `of ${nodes.length} nodes ${draining} drain and the others are silent`;
  return {
    name: 'nodes',
    why: `${queued} sessions wait and ${why}`,
    remedy: 'start gateway nodes that can reach this server',
  };
}

function unusableEngines({ enginesPaused }: Facts, working: readonly WorkingNode[]): Verdict | null {
  if (enginesPaused) {
    return {
      name: 'engines',
      why: 'the engines are paused, so every model call waits or is refused',
      remedy: 'resume them when the weights are in place: POST /engines/resume',
    };
  }
  const told = working.flatMap((node) => node.engines ?? []);
  // A node that has told nothing yet may have engines of its own.
  if (told.length < working.length) return null;
  const engines = told.flatMap((one) => one.info);
  if (engines.some((engine) => engine.healthy)) return null;
  const problem = told.flatMap((one) => one.problems)[0]?.message;
  const why = engines.length === 0 ? 'no node has an engine' : `none of the ${engines.length} engines answers`;
  return {
    name: 'engines',
    why: problem === undefined ? why : `${why}: ${problem}`,
    remedy: 'start an inference server and register it: floe engines add, or POST /engines',
  };
}

function postrun(working: readonly WorkingNode[]): Verdict | null {
  const size = total(working, 'max_postrun_workers');
  const waiting = inStage(working, 'postrun_queue_depth');
  // Fewer than one round ahead of the workers is how a busy stage looks.
  if (waiting < size) return null;
  return {
    name: 'postrun_pool',
    why: `${waiting} sessions have run and wait for one of ${size} POSTRUN workers, which evaluate`,
    remedy: 'raise --postrun of floe gateway (max_postrun_workers), or add nodes',
  };
}

function heldBack({ waiting }: Facts): Verdict | null {
  const [first] = waiting;
  if (first === undefined || waiting.some((one) => one.heldBack === null)) return null;
  return {
    name: 'trainer',
    why: `trainer ${first.trainer} is held back: ${first.heldBack}`,
    remedy: 'collect the results (GET /rollout/results, or acknowledge callbacks), or raise the limit',
  };
}

function busyStage({ queued }: Facts, working: readonly WorkingNode[]): Verdict | null {
  const run = total(working, 'max_run_workers');
  const inits = total(working, 'max_init_workers');
  const ahead = queued + inStage(working, 'init_inflight') + inStage(working, 'ready_depth');
  if (inStage(working, 'run_inflight') >= run && ahead > 0) {
    return (
      busyEngines(working) ?? {
        name: 'run_pool',
        why: `all ${run} RUN workers are busy and ${ahead} sessions are before them, while the engines take more calls`,
        remedy: 'raise --run of floe gateway (max_run_workers), or add nodes',
      }
    );
  }
  if (inStage(working, 'init_inflight') >= inits && queued > 0) {
    return {
      name: 'init_pool',
      why: `all ${inits} INIT workers are starting runtimes while RUN workers are free and ${queued} sessions wait`,
      remedy:
        'raise --init of floe gateway (max_init_workers), or make runtimes start faster (prepared images, fewer prepare actions)',
    };
  }
  return null;
}

function busyEngines(working: readonly WorkingNode[]): Verdict | null {
  const engines = working.flatMap((node) => node.engines?.info ?? []).filter((engine) => engine.healthy);
  const full = engines.filter((engine) => engine.inflight >= (engine.max_concurrency ?? Number.POSITIVE_INFINITY));
  if (engines.length === 0 || full.length < engines.length) return null;
  return {
    name: 'engines',
    why: `every one of ${engines.length} engines has as many calls under way as its max_concurrency allows`,
    remedy: 'add engines, or raise max_concurrency where they have room',
  };
}

function backoff({ queued, waiting }: Facts): Verdict | null {
  if (queued === 0 || waiting.length > 0) return null;
  return {
    name: 'retry_backoff',
    why: `all ${queued} queued sessions sit out the pause after a failure of the infrastructure`,
    remedy: 'see why attempts fail (counters.retries, the errors of sessions); retry_backoff_seconds sets the pause',
  };
}

function total(
  nodes: readonly WorkingNode[],
  setting: 'max_init_workers' | 'max_run_workers' | 'max_postrun_workers',
): number {
  return nodes.reduce((sum, node) => sum + node[setting], 0);
}

function inStage(nodes: readonly WorkingNode[], metric: keyof NodeStageMetrics): number {
  return nodes.reduce((sum, node) => sum + node.metrics[metric], 0);
}
