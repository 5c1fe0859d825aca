/** Mean active time of one session in each stage, in milliseconds. `postrunMs` includes the evaluation. */
export type StageMeans = { readonly initMs: number; readonly runMs: number; readonly postrunMs: number };

/** Number of workers of each stage. */
export type StageWorkers = { readonly init: number; readonly run: number; readonly postrun: number };

/** The number of workers that a stage needs, so that all RUN workers are busy. */
export type PoolHint = {
  readonly stage: 'init' | 'postrun';
  readonly size: number;
  readonly needed: number;
  /** Whether `size` is less than `needed`, so that RUN workers are idle at times. */
  readonly short: boolean;
};

export type PoolAdvice = {
  /** The stage that limits a node with a full queue, that is, the stage with the lowest rate of sessions per second. */
  readonly bottleneck: 'init' | 'run' | 'postrun';
  /** Maximum number of sessions per second that the node can process. */
  readonly sessionsPerSecond: number;
  readonly hints: readonly PoolHint[];
};

/**
 * Suggests pool sizes from measured durations. All RUN workers are busy when the other stages process as many sessions per second as RUN
 * does: `init >= run x E[init] / E[run]`, and the same for POSTRUN. Returns `null` while no session has run. Throws RangeError for a mean
 * that is negative or not finite.
 */
export function poolHints(means: StageMeans, workers: StageWorkers): PoolAdvice | null {
  for (const [name, ms] of Object.entries(means)) {
    if (!Number.isFinite(ms) || ms < 0) throw new RangeError(`${name} must be a duration, not ${ms}`);
  }
  if (means.runMs === 0) return null;
  const perMs = workers.run / means.runMs;
  const hint = (stage: PoolHint['stage'], size: number, meanMs: number): PoolHint => {
    // Durations are measured and not exact, so a need of 4.0000001 workers is rounded down to four.
    const needed = Math.max(1, Math.ceil(perMs * meanMs - 1e-6));
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
