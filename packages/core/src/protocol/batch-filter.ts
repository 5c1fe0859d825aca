import type { SessionSummary } from '../schema/index.ts';

/** A finished group of a batch stream, as an operator's filter sees it. */
export type FilteredGroup = {
  readonly row_index: number;
  readonly epoch: number;
  /** Step of the policy when the group was started; `null` when the trainer names no versions. */
  readonly policy_step: number | null;
  /** Mean of the rewards that count in the baseline; `null` when there is none. */
  readonly mean_reward: number | null;
  /** The group's samples without their token data, ordered by index. */
  readonly samples: readonly Pick<SessionSummary, 'reward' | 'reward_components' | 'outcome' | 'policy' | 'unusable'>[];
};

/**
 * Decides whether a group that the rules of its stream accept is handed to the trainer. It is called in a transaction, so it must return at
 * once, without a promise, and depend on its argument alone. A group for which it throws, returns anything but `true`, or takes more than a
 * second is rejected.
 */
export type BatchFilter = (group: FilteredGroup) => boolean;
