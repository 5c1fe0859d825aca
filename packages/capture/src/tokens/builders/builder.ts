import type { ConstrainedSpan, VersionSpan } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { RoutedExperts } from '../../reply.ts';
import type { GraphNode, TokenGraph } from '../graph.ts';

/**
 * A run of trained tokens: `length` positions of the trace's response from `start` on. They are copied from a completion's response, from
 * position `offset` on.
 */
export type TrainedSpan = {
  readonly completionId: string;
  readonly offset: number;
  readonly start: number;
  readonly length: number;
  /**
   * Whether the builder claims that the context of the span is exact: the ids before the span in the trace are exactly the ids after which
   * its tokens were sampled. The audit checks the claim.
   */
  readonly exactContext: boolean;
};

/**
 * One trainable token sequence, stored in columns. `ids` is the prompt (the first `promptLength` ids) followed by the response. `lossMask`
 * and `logprobs` have one element per response position.
 */
export type BuiltTrace = {
  readonly ids: Int32Array;
  readonly promptLength: number;
  /** The mask of each response position: 1 where it is trained, 0 elsewhere. */
  readonly lossMask: Uint8Array;
  /** The sampled log-probability of each trained response position, and 0 at all other response positions. */
  readonly logprobs: Float32Array;
  /** The trained spans in order of position, without overlap. Together they cover exactly the positions with mask 1. */
  readonly spans: readonly TrainedSpan[];
  /** The policy versions that sampled the trained positions, in order of position. */
  readonly versionSpans: readonly VersionSpan[];
  /** The response positions, trained or not, that were sampled under a constraint, in order of position. */
  readonly constrainedSpans: readonly ConstrainedSpan[];
  /**
   * The experts that a mixture-of-experts model selected, with one row for every position from `start` (counted over prompt and response)
   * to the last but one; `null` when a row is unknown.
   */
  readonly routedExperts: RoutedExperts | null;
  /** The completions in the trace, in order. Completions that are not trained and only serve as context are included. */
  readonly nodes: readonly GraphNode[];
  /**
   * The position of the trace in its episode when the trace is one turn of an episode, otherwise `null`. Traces of an episode are adjacent
   * and in order.
   */
  readonly step: StepPosition | null;
};

export type StepPosition = {
  /** Number of the episode within the session, counted from 0. */
  readonly episode: number;
  readonly turn: number;
  readonly last: boolean;
};

export const creditSchema = z
  .enum(['broadcast', 'divide'])
  .default('broadcast')
  .describe('the reward of a session: all of it to each of its traces, or divided equally among them');
/**
 * How the reward of a session is distributed to its traces. With `broadcast`, each trace gets the whole reward. With `divide`, each trace
 * gets an equal share, except that all steps of one episode together count as one share.
 */
export type Credit = z.infer<typeof creditSchema>;

export type RewardShares = {
  /** The number of shares into which the session's reward is divided; 1 when the reward is not divided. */
  readonly parts: number;
  /** The reward that each trace gets; `null` when the session has no reward. */
  readonly reward: number | null;
};

/**
 * Computes the share of the session's reward that each trace gets. All traces count equally, whatever their agent thread or call kind,
 * including trained auxiliary calls.
 */
export function rewardShares(traces: readonly BuiltTrace[], credit: Credit, reward: number | null): RewardShares {
  if (credit === 'broadcast') return { parts: 1, reward };
  const episodes = new Set(traces.flatMap((trace) => (trace.step === null ? [] : [trace.step.episode])));
  const single = traces.filter((trace) => trace.step === null).length;
  const parts = Math.max(episodes.size + single, 1);
  return { parts, reward: reward === null ? null : reward / parts };
}

/**
 * Rewards that an evaluator gave to single traces, by trace id, and to single completions, by completion id. The reward of a trace replaces
 * its share of the session's reward.
 */
export type ExplicitRewards = {
  readonly traces: ReadonlyMap<string, number>;
  readonly completions: ReadonlyMap<string, number>;
};

export const NO_EXPLICIT_REWARDS: ExplicitRewards = { traces: new Map(), completions: new Map() };

export type BuildResult = {
  readonly traces: readonly BuiltTrace[];
  /** Maps the id of every completion without trained tokens to the reason why it is not trained. */
  readonly excluded: ReadonlyMap<string, string>;
  readonly credit: Credit;
};

/**
 * Builds traces from a session's token graph. A builder is pure: the same graph and configuration give the same result, and it stores no
 * state and does not change the graph. Every completion must be trained in exactly one trace or excluded with a reason; otherwise the audit
 * fails.
 */
export interface Builder {
  readonly name: string;
  /**
   * Checks the builder configuration of a task when the task is submitted, so that a wrong configuration is refused before any session
   * starts. Throws `schema_violation` for a wrong configuration.
   */
  checkConfig(config: Readonly<Record<string, unknown>>): void;
  /** Builds the traces of a session. Throws `schema_violation` for a wrong configuration, and no other errors. */
  build(graph: TokenGraph, config: Readonly<Record<string, unknown>>): BuildResult;
}
