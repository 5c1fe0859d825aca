import { z } from 'zod';
import type { RoutedExperts } from '../../core/reply.ts';
import type { VersionSpan } from '../../schema/index.ts';
import type { GraphNode, TokenGraph } from '../graph.ts';

/** A run of trained tokens: `length` positions from `start` of the trace's response, copied from `offset` of a completion's response. */
export type TrainedSpan = {
  readonly completionId: string;
  readonly offset: number;
  readonly start: number;
  readonly length: number;
  /** The builder's claim that the span was sampled after exactly the ids that precede it in the trace. The audit checks it. */
  readonly exactContext: boolean;
};

/**
 * One trainable token sequence in columns. `ids` is the prompt (the first `promptLength` ids) followed by the response; the other
 * columns have one entry per response position.
 */
export type BuiltTrace = {
  readonly ids: Int32Array;
  readonly promptLength: number;
  /** 1 where trained, else 0. */
  readonly lossMask: Uint8Array;
  /** 0 where not trained. */
  readonly logprobs: Float32Array;
  /** In order of position, without overlap. Together they cover exactly the positions with mask 1. */
  readonly spans: readonly TrainedSpan[];
  /** Cover the trained positions, in order. */
  readonly versionSpans: readonly VersionSpan[];
  /** One row for every position from `start` (counted over prompt and response) except the last; `null` when a row is unknown. */
  readonly routedExperts: RoutedExperts | null;
  /** The completions in the trace, in order, including those that are only context. */
  readonly nodes: readonly GraphNode[];
  /** The trace's position when it is one turn of an episode; traces of an episode are adjacent and in order. Otherwise `null`. */
  readonly step: StepPosition | null;
};

export type StepPosition = {
  /** Number of the episode within the session, from 0. */
  readonly episode: number;
  readonly turn: number;
  readonly last: boolean;
};

export const creditSchema = z
  .enum(['broadcast', 'divide'])
  .default('broadcast')
  .describe('the reward of a session: all of it to each of its traces, or divided equally among them');
/**
 * How the reward of a session is distributed to its traces. `broadcast`: each trace has the whole reward; `divide`: each has an
 * equal share, and the steps of one episode have one share together.
 */
export type Credit = z.infer<typeof creditSchema>;

export type RewardShares = {
  /** The number of shares that the reward is divided into; 1 when it is not divided. */
  readonly parts: number;
  /** The reward of each trace; `null` when the session has no reward. */
  readonly reward: number | null;
};

/**
 * The shares of a session's reward. All traces count equally, whatever their thread or call kind, including auxiliary ones that
 * are trained.
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
  /** The reason for every completion of which no token is trained, by completion id. */
  readonly excluded: ReadonlyMap<string, string>;
  readonly credit: Credit;
};

/**
 * Builds traces from a session's token graph. A builder is pure: the same graph and configuration give the same result, it keeps
 * nothing and does not change the graph. Every completion must be trained in exactly one trace or excluded with a reason; the audit
 * refuses anything else.
 */
export interface Builder {
  readonly name: string;
  /** Throws `schema_violation`. Called when a task is submitted, so that a bad configuration is refused before any work. */
  checkConfig(config: Readonly<Record<string, unknown>>): void;
  /** Throws `schema_violation` for a bad configuration, and nothing else. */
  build(graph: TokenGraph, config: Readonly<Record<string, unknown>>): BuildResult;
}
