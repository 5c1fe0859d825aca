import type { BatchAccept, SessionSummary } from '@floe-rl/core/schema';

/** The reason why a group is not handed to the trainer. */
export type Rejection =
  | 'few_usable'
  | 'few_resolved'
  | 'all_wrong'
  | 'all_right'
  | 'equal_rewards'
  | 'filter'
  | 'filter_failed';

/**
 * The pattern of the rewards of a group's samples, which shows how hard its task is. Only rewards that count in the group's baseline are
 * considered.
 */
type RewardPattern = 'all_wrong' | 'all_right' | 'equal_rewards' | 'mixed' | 'none';

export type GroupVerdict = {
  /** `null` when the group is effective. */
  readonly rejection: Rejection | null;
  readonly usable: number;
  /** Number of usable samples whose reward is at least the reward of a resolved task. */
  readonly resolved: number;
  /** Mean of the rewards that count in the baseline; `null` when there is none. */
  readonly meanReward: number | null;
  readonly pattern: RewardPattern;
};

type Sample = Pick<SessionSummary, 'reward' | 'policy' | 'unusable' | 'outcome'>;

/** Rewards that differ by at most this count as equal, because GRPO would divide by a standard deviation of this size. */
const SAME_REWARD = 1e-9;

/**
 * Decides whether the samples of a finished group are effective. For fields that are `null`, the default depends on `hasEvaluator` and on the
 * number of samples of the task.
 */
export function judgeGroup(
  samples: readonly Sample[],
  accept: BatchAccept,
  { hasEvaluator, numSamples }: { readonly hasEvaluator: boolean; readonly numSamples: number },
): GroupVerdict {
  const rewards = samples.flatMap(({ policy, reward }) => (policy.in_baseline && reward !== null ? [reward] : []));
  const usable = samples.filter((sample) => sample.unusable === null);
  const resolved = usable.filter(({ reward }) => reward !== null && reward >= accept.resolved_reward).length;
  const pattern = patternOf(rewards, accept.resolved_reward);
  const byDefault = accept.zero_variance ?? (hasEvaluator && numSamples > 1 ? 'drop' : 'keep');
  const verdict = {
    usable: usable.length,
    resolved,
    meanReward: rewards.length === 0 ? null : rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length,
    pattern,
  };
  if (usable.length < (accept.min_usable ?? Math.min(2, numSamples))) return { ...verdict, rejection: 'few_usable' };
  if (resolved < accept.min_resolved) return { ...verdict, rejection: 'few_resolved' };
  if (pattern === 'mixed' || pattern === 'none') return { ...verdict, rejection: null };
  const rule = pattern === 'equal_rewards' ? byDefault : (accept[pattern] ?? byDefault);
  return { ...verdict, rejection: rule === 'drop' ? pattern : null };
}

function patternOf(rewards: readonly number[], resolvedReward: number): RewardPattern {
  if (rewards.length === 0) return 'none';
  const least = Math.min(...rewards);
  const most = Math.max(...rewards);
  if (most - least > SAME_REWARD) return 'mixed';
  if (least >= resolvedReward) return 'all_right';
  return most <= 0 ? 'all_wrong' : 'equal_rewards';
}
