/** A trainer that has queued sessions. */
export type TrainerDemand = {
  readonly trainer: string;
  /** Sessions of this trainer that nodes hold now. */
  readonly live: number;
  /** Above 0; a trainer of weight 2 gets twice as much as one of weight 1. */
  readonly weight: number;
};

/**
 * Splits `slots` among trainers so that the sessions that each then holds, divided by its weight, are as equal as possible: every slot
 * goes to the trainer with the lowest load. Ties are broken by name. Sessions that a trainer already holds are never taken away.
 * Trainers that get no slot are left out of the result.
 */
export function fairShares(slots: number, demands: readonly TrainerDemand[]): ReadonlyMap<string, number> {
  const [only] = demands;
  if (only === undefined || slots <= 0) return new Map();
  if (demands.length === 1) return new Map([[only.trainer, slots]]);
  const shares = new Map<string, number>();
  // Sorted by name, so that the first of equals wins whatever order the caller listed them in.
  const trainers = [...demands].sort((a, b) => (a.trainer < b.trainer ? -1 : 1));
  for (let left = slots; left > 0; left--) {
    const next = trainers.reduce((least, one) => (loadAfter(one, shares) < loadAfter(least, shares) ? one : least));
    shares.set(next.trainer, (shares.get(next.trainer) ?? 0) + 1);
  }
  return shares;
}

/** A trainer's load with one more session, so that the larger weight wins while no trainer has any. */
function loadAfter({ trainer, live, weight }: TrainerDemand, shares: ReadonlyMap<string, number>): number {
  return (live + (shares.get(trainer) ?? 0) + 1) / weight;
}
