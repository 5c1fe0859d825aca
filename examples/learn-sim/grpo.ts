// One step of asynchronous GRPO on the simulated policy.
import type { SessionResult } from 'floe/schema';
import type { Placement, SoftmaxPolicy } from './policy.ts';

export type GrpoOptions = {
  readonly learningRate: number;
  /** Gradient steps on each batch. */
  readonly epochs: number;
  /** Range of the importance ratio around 1, beyond which a token adds no gradient in the direction of its advantage. */
  readonly clip: number;
};

/** The tokens that one step trained on. All counts are of tokens with a loss mask of 1. */
export type TrainedTokens = {
  readonly tokens: number;
  /** Tokens at which the policy chose. Only these have a gradient. */
  readonly choices: number;
  /** Tokens that the policy cannot have sampled where they are. */
  readonly impossible: number;
  /** Tokens that an earlier version of the policy sampled. */
  readonly stale: number;
  /** Tokens with another log-probability than the version has that sampled them according to floe. */
  readonly mismatched: number;
};

/** A token with a loss mask of 1. `version` is `null` when floe does not know which version sampled it. */
type Token = {
  readonly placement: Placement;
  readonly recorded: number;
  readonly version: string | null;
};

/** Largest difference between a recorded log-probability, which is a float32, and the trainer's own. */
const LOGPROB_TOLERANCE = 1e-4;

/**
 * Computes advantages within each group and takes `epochs` gradient steps. The objective is the mean over samples of the sum over tokens of
 * min(ratio A, clip(ratio) A). The ratio is the probability of the token now divided by the recorded probability. `versions` are the
 * parameters of every version that served, and `current` is the newest.
 *
 * An impossible token has the ratio 0, so it adds nothing to the gradient. It is not skipped: it counts as trained and as impossible.
 */
export function trainOn(
  groups: readonly (readonly SessionResult[])[],
  policy: SoftmaxPolicy,
  versions: ReadonlyMap<string, Float64Array>,
  current: string,
  { learningRate, epochs, clip }: GrpoOptions,
): TrainedTokens {
  const samples = groups.flatMap((group) => {
    const usable = group.filter(({ unusable }) => unusable === null);
    const advantages = groupAdvantages(usable.map(({ reward }) => reward ?? 0));
    return usable.map((result, index) => ({
      advantage: advantages[index] as number,
      tokens: tokensOf(result, policy),
    }));
  });
  for (let epoch = 0; epoch < epochs; epoch++) {
    const gradient = new Float64Array(policy.parameters.length);
    for (const { advantage, tokens } of samples) {
      for (const { placement, recorded } of tokens) {
        const ratio = Math.exp(policy.logProbability(placement) - recorded);
        const isClipped = advantage > 0 ? ratio > 1 + clip : ratio < 1 - clip;
        if (isClipped || typeof placement === 'string') continue;
        policy.addGradient(placement, (advantage * ratio) / samples.length, gradient);
      }
    }
    policy.parameters = policy.parameters.map((value, index) => value + learningRate * (gradient[index] as number));
  }
  const tokens = samples.flatMap((sample) => sample.tokens);
  const isMismatched = ({ placement, recorded, version }: Token): boolean => {
    if (version === null) return false;
    const parameters = versions.get(version);
    if (parameters === undefined) return true;
    return !(Math.abs(policy.logProbability(placement, parameters) - recorded) < LOGPROB_TOLERANCE);
  };
  return {
    tokens: tokens.length,
    choices: tokens.filter(({ placement }) => typeof placement === 'object').length,
    impossible: tokens.filter(({ placement }) => placement === 'impossible').length,
    stale: tokens.filter(({ version }) => version !== null && version !== current).length,
    mismatched: tokens.filter(isMismatched).length,
  };
}

/** Returns (reward - mean) / standard deviation of each sample of a group. */
export function groupAdvantages(rewards: readonly number[]): number[] {
  const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
  const squares = rewards.reduce((sum, reward) => sum + (reward - mean) ** 2, 0);
  const deviation = Math.sqrt(squares / Math.max(1, rewards.length - 1));
  return rewards.map((reward) => (reward - mean) / (deviation + 1e-6));
}

/** Returns the trained tokens of a session, each placed in the context of the ids before it. */
function tokensOf(result: SessionResult, policy: SoftmaxPolicy): Token[] {
  return (result.trajectory?.traces ?? []).flatMap((trace) => {
    const placements = policy.place([...trace.prompt_ids, ...trace.response_ids]);
    return trace.loss_mask.flatMap((bit, index): Token[] => {
      if (bit === 0) return [];
      const span = trace.version_spans.find(({ start, end }) => index >= start && index < end);
      return [
        {
          placement: placements[trace.prompt_ids.length + index] ?? 'impossible',
          recorded: trace.response_logprobs[index] ?? 0,
          version: span?.version ?? null,
        },
      ];
    });
  });
}
