/** The demand of a trainer that has queued sessions. */
export type TrainerDemand = {
  readonly trainer: string;
  /** Number of this trainer's sessions that nodes run at present. */
  readonly live: number;
  /** Share of the trainer, above 0: a trainer of weight 2 gets twice as many slots as one of weight 1. */
  readonly weight: number;
};

/**
 * Distributes `slots` among trainers. Every slot goes to the trainer with the lowest load, which is its number of sessions divided by its
 * weight, so that the loads become as equal as possible. Ties are broken by name. Sessions that a trainer already holds are not taken away.
 * Returns the number of slots by trainer, without trainers that get none.
 */
export function fairShares(slots: number, demands: readonly TrainerDemand[]): ReadonlyMap<string, number> {
  const [only] = demands;
  if (only === undefined || slots <= 0) return new Map();
  if (demands.length === 1) return new Map([[only.trainer, slots]]);
  const shares = new Map<string, number>();
  // Sorted by name, so that ties do not depend on the order of `demands`.
  const trainers = [...demands].sort((a, b) => (a.trainer < b.trainer ? -1 : 1));
  for (let left = slots; left > 0; left--) {
    const next = trainers.reduce((least, one) => (loadAfter(one, shares) < loadAfter(least, shares) ? one : least));
    shares.set(next.trainer, (shares.get(next.trainer) ?? 0) + 1);
  }
  return shares;
}

/**
 * Returns the load that a trainer would have with one more session, in sessions per weight. The additional session is counted so that,
 * while no trainer holds a session, the trainer with the largest weight gets the first slot.
 */
function loadAfter({ trainer, live, weight }: TrainerDemand, shares: ReadonlyMap<string, number>): number {
  return (live + (shares.get(trainer) ?? 0) + 1) / weight;
}
