/** A trainer with work that waits. */
export type Waiting = {
  readonly trainer: string;
  /** Sessions that nodes hold for it now. */
  readonly live: number;
  /** Above 0; a trainer of weight 2 gets twice as much as one of weight 1. */
  readonly weight: number;
};

/**
 * Splits `slots` among trainers so that what each holds then, over its weight, is as equal as can be: every slot goes to the trainer
 * that has the least. Ties go by name. What a trainer already holds is never taken away. Trainers that get nothing are left out.
 */
export function fairShares(slots: number, waiting: readonly Waiting[]): ReadonlyMap<string, number> {
  const [only] = waiting;
  if (only === undefined || slots <= 0) return new Map();
  if (waiting.length === 1) return new Map([[only.trainer, slots]]);
  const shares = new Map<string, number>();
  // By name, so that of equals the first is taken, whatever order they came in.
  const trainers = [...waiting].sort((a, b) => (a.trainer < b.trainer ? -1 : 1));
  for (let left = slots; left > 0; left--) {
    const next = trainers.reduce((least, one) => (loadWith(one, shares) < loadWith(least, shares) ? one : least));
    shares.set(next.trainer, (shares.get(next.trainer) ?? 0) + 1);
  }
  return shares;
}

/** A trainer's load once it had one session more: the larger weight wins where nobody has anything yet. */
function loadWith({ trainer, live, weight }: Waiting, shares: ReadonlyMap<string, number>): number {
  return (live + (shares.get(trainer) ?? 0) + 1) / weight;
}
