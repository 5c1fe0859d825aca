import type { RoutedExperts } from '../../core/reply.ts';
import type { VersionSpan } from '../../schema/index.ts';
import type { GraphNode, TokenGraph } from '../graph.ts';

/** A run of trained tokens: `length` positions of the trace's response from `start`, out of a completion's response from `offset`. */
export type TrainedSpan = {
  readonly completionId: string;
  readonly offset: number;
  readonly start: number;
  readonly length: number;
  /** The builder's claim that the ids before the span are those that the span was sampled after; the audit checks it. */
  readonly exactContext: boolean;
};

/**
 * One trainable token sequence in columns. `ids` is the prompt (the first `promptLength` ids) and then the response;
 * the other columns have one entry per response position.
 */
export type BuiltTrace = {
  readonly ids: Int32Array;
  readonly promptLength: number;
  /** 1 where trained, else 0. */
  readonly lossMask: Uint8Array;
  /** 0 where not trained. */
  readonly logprobs: Float32Array;
  /** By position, without overlap; together exactly the positions with mask 1. */
  readonly spans: readonly TrainedSpan[];
  /** Over the trained positions, by position. */
  readonly versionSpans: readonly VersionSpan[];
  /** From its `start`, counted over prompt and response, a row for every position but the last; null: not all are known. */
  readonly routedExperts: RoutedExperts | null;
  /** The completions in the trace, in order; those that are context only are among them. */
  readonly nodes: readonly GraphNode[];
  /** Where the trace is one turn of several that belong together. Traces with one `episode` stand together, by turn. */
  readonly step: StepPlace | null;
};

export type StepPlace = {
  /** Counts from 0 in a session. */
  readonly episode: number;
  readonly turn: number;
  readonly last: boolean;
};

/**
 * How the reward of a session goes to its traces. `broadcast`: each has all of it; `divide`: each has an equal share, the steps of
 * one episode together one.
 */
export type Credit = 'broadcast' | 'divide';

export type BuildResult = {
  readonly traces: readonly BuiltTrace[];
  /** Completion id -> reason, for every completion of which no token is trained. */
  readonly excluded: ReadonlyMap<string, string>;
  readonly credit: Credit;
};

/**
 * Makes traces out of a session's token graph. Pure: the same graph and configuration give the same result, nothing is
 * kept, the graph is not changed. Every completion must end up trained in exactly one place or excluded with a reason;
 * the audit refuses anything else.
 */
export interface Builder {
  readonly name: string;
  /** Throws `schema_violation`; called at submission, so that a bad configuration is refused before any work. */
  checkConfig(config: Readonly<Record<string, unknown>>): void;
  /** Throws `schema_violation` for a bad configuration and nothing else. */
  build(graph: TokenGraph, config: Readonly<Record<string, unknown>>): BuildResult;
}
