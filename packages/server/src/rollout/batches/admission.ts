/** The state that determines how many groups of a stream may run. Sizes of batches and of ready groups are in the stream's `batch_unit`. */
export type AdmissionState = {
  /** Size of the batch for which the trainer waits; 0 when it waits for none. */
  readonly requested: number;
  /** Size of all accepted groups that belong to no batch yet. */
  readonly ready: number;
  /** Number of groups that run. */
  readonly running: number;
  readonly batchSize: number;
  /** Largest size that one group may add to a batch: 1 where groups are counted, and otherwise its number of samples. */
  readonly perGroup: number;
  readonly maxStaleness: number;
  readonly oversampling: number;
};

/**
 * Returns the number of groups that may be started now. At most `maxStaleness` batches are sampled in addition to the batch that the trainer
 * waits for: ready + running <= requested + maxStaleness * batchSize. For batches of `batchSize` groups, this is the rule of AReaL's staleness
 * manager (arXiv 2505.24298, section 5.1). `oversampling` is the number of groups that may run for each missing accepted group.
 */
export function startableGroups(state: AdmissionState): number {
  const missing = state.requested + state.maxStaleness * state.batchSize - state.ready;
  const groups = Math.ceil(missing / state.perGroup);
  return Math.max(0, Math.ceil(groups * state.oversampling) - state.running);
}
