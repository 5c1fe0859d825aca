import { workersNeeded } from '#server/rollout/status/bottleneck';

/** Mean active time of a session in each stage, in ms. `postrunMs` includes the evaluation. */
export type StageMeans = { readonly initMs: number; readonly runMs: number; readonly postrunMs: number };

/** Number of workers of each stage on a node. */
export type StageWorkers = { readonly init: number; readonly run: number; readonly postrun: number };

/** Compares the number of workers of a stage (`size`) with the number that is needed to keep all RUN workers busy (`needed`). */
export type PoolHint = {
  readonly stage: 'init' | 'postrun';
  readonly size: number;
  readonly needed: number;
  /** Whether `size` is less than `needed`. If so, the workers that run agents are sometimes idle. */
  readonly short: boolean;
};

export type PoolAdvice = {
  /** The stage that limits the throughput of a node with a full queue. It processes the fewest sessions per second. */
  readonly bottleneck: 'init' | 'run' | 'postrun';
  /** Maximum number of sessions per second that the node can process. */
  readonly sessionsPerSecond: number;
  readonly hints: readonly PoolHint[];
};

/**
 * Suggests stage pool sizes from measured mean durations. All RUN workers are busy when INIT processes at least as many sessions per second
 * as RUN, that is, `init >= run x E[init] / E[run]`. The same holds for POSTRUN. Returns `null` when the mean duration of RUN is 0, because
 * no session has run. Throws RangeError for a mean that is negative or not finite.
 */
export function poolAdvice(means: StageMeans, workers: StageWorkers): PoolAdvice | null {
  for (const [name, ms] of Object.entries(means)) {
    if (!Number.isFinite(ms) || ms < 0) throw new RangeError(`${name} must be a duration, not ${ms}`);
  }
  if (means.runMs === 0) return null;
  const perMs = workers.run / means.runMs;
  const hint = (stage: PoolHint['stage'], size: number, meanMs: number): PoolHint => {
    const needed = workersNeeded(workers.run, meanMs, means.runMs);
    return { stage, size, needed, short: size < needed };
  };
  const capacities = [
    { stage: 'run', perMs },
    { stage: 'init', perMs: means.initMs === 0 ? Number.POSITIVE_INFINITY : workers.init / means.initMs },
    { stage: 'postrun', perMs: means.postrunMs === 0 ? Number.POSITIVE_INFINITY : workers.postrun / means.postrunMs },
  ] as const;
  const least = capacities.reduce((lowest, other) => (other.perMs < lowest.perMs ? other : lowest));
  return {
    bottleneck: least.stage,
    sessionsPerSecond: least.perMs * 1000,
    hints: [hint('init', workers.init, means.initMs), hint('postrun', workers.postrun, means.postrunMs)],
  };
}
