import { z } from 'zod';
import type { RoutedExperts } from '../../core/reply.ts';
import type { VersionSpan } from '../../schema/index.ts';
import type { GraphNode, TokenGraph } from '../graph.ts';

/**
 * A run of trained tokens: `length` positions of the trace's response from `start`, copied from the positions from `offset` of a
 * completion's response.
 */
export type TrainedSpan = {
  readonly completionId: string;
  readonly offset: number;
  readonly start: number;
  readonly length: number;
  /**
   * Whether the builder claims that the span was sampled after exactly the ids that precede it in the trace. The audit checks the claim.
   */
  readonly exactContext: boolean;
};

/**
 * One trainable token sequence, stored in columns. `ids` is the prompt (the first `promptLength` ids) followed by the response; the other
 * columns have one element per response position.
 */
export type BuiltTrace = {
  readonly ids: Int32Array;
  readonly promptLength: number;
  /** 1 at each trained response position, 0 elsewhere. */
  readonly lossMask: Uint8Array;
  /** The sampled log-probability at each trained response position, 0 elsewhere. */
  readonly logprobs: Float32Array;
  /** The trained spans in order of position, without overlap. Together they cover exactly the positions with mask 1. */
  readonly spans: readonly TrainedSpan[];
  /** The policy versions that sampled the trained positions, in order of position. */
  readonly versionSpans: readonly VersionSpan[];
  /**
   * One row of experts for every position from `start` (counted over prompt and response) to the last but one; `null` when a row is
   * unknown.
   */
  readonly routedExperts: RoutedExperts | null;
  /** The completions in the trace, in order, including those that are not trained but only context. */
  readonly nodes: readonly GraphNode[];
  /**
   * The position of the trace in an episode when the trace is one turn of it, otherwise `null`. Traces of an episode are adjacent and in
   * order.
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
 * How the reward of a session is distributed to its traces. With `broadcast`, each trace gets the whole reward; with `divide`, each gets
 * an equal share, and the steps of one episode get one share together.
 */
export type Credit = z.infer<typeof creditSchema>;

export type RewardShares = {
  /** The number of shares that the reward is divided into; 1 when it is not divided. */
  readonly parts: number;
  /** The reward that each trace gets; `null` when the session has no reward. */
  readonly reward: number | null;
};

/**
 * Computes the share of the session's reward that each trace gets. All traces count equally, whatever their thread or call kind, including
 * auxiliary ones that are trained.
 */
export function rewardShares(traces: readonly BuiltTrace[], credit: Credit, reward: number | null): RewardShares {
  if (credit === 'broadcast') return { parts: 1, reward };
  const episodes = new Set(traces.flatMap((trace) => (trace.step === null ? [] : [trace.step.episode])));
  const single = traces.filter((trace) => trace.step === null).length;
  const parts = Math.max(episodes.size + single, 1);
  return { parts, reward: reward === null ? null : reward / parts };
}

export type BuildResult = {
  readonly traces: readonly BuiltTrace[];
  /** Maps the id of every completion of which no token is trained to the reason for that. */
  readonly excluded: ReadonlyMap<string, string>;
  readonly credit: Credit;
};

/**
 * Builds traces from a session's token graph. A builder is pure: the same graph and configuration give the same result, and it keeps no
 * state and does not change the graph. Every completion must be trained in exactly one trace or excluded with a reason; the audit refuses
 * anything else.
 */
export interface Builder {
  readonly name: string;
  /**
   * Checks the builder configuration of a task when the task is submitted, so that a wrong one is refused before any session starts.
   * Throws `schema_violation`.
   */
  checkConfig(config: Readonly<Record<string, unknown>>): void;
  /** Builds the traces of a session. Throws `schema_violation` for a wrong configuration, and nothing else. */
  build(graph: TokenGraph, config: Readonly<Record<string, unknown>>): BuildResult;
}
