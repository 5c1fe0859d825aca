import { JsonWriter } from '@floe-rl/core';
import type { Audit, StrategySpec, TerminalStatus } from '@floe-rl/core/schema';
import type { RoutedExperts } from '../reply.ts';
import { type AuditTally, auditTraces } from './audit.ts';
import {
  type BuiltTrace,
  type Credit,
  type ExplicitRewards,
  NO_EXPLICIT_REWARDS,
  rewardShares,
} from './builders/builder.ts';
import { type BuilderRegistry, builderRegistry } from './builders/registry.ts';
import type { Completion } from './completion.ts';
import { MarkCounter } from './context-marks.ts';
import { responseTexts } from './conversation.ts';
import { buildGraph, type GraphOptions, type TokenGraph } from './graph.ts';
import { imagesNotIn } from './images.ts';
import { mixturesOf, type SessionFacts, traceMetadata } from './trace-metadata.ts';

export type TracesRequest = {
  readonly spec: StrategySpec;
  /** All completions of one attempt, in any order. */
  readonly completions: readonly Completion[];
  /** The builders that a task can select. Default: the built-in builders. */
  readonly builders?: BuilderRegistry;
  readonly graphOptions?: GraphOptions;
};

/** The audited traces of one attempt, before they are encoded. */
export type BuiltTraces = {
  readonly builder: string;
  readonly graph: TokenGraph;
  readonly traces: readonly BuiltTrace[];
  readonly credit: Credit;
  readonly audit: Audit;
  /** The audit's token counts for each pair of dialect and engine. */
  readonly tallies: readonly AuditTally[];
};

/** How the session of a trajectory ended, which is known only after its traces are built. */
export type TrajectoryEnding = {
  readonly status: TerminalStatus;
  /** The session's reward, which is distributed to the traces as the builder's `credit` states; `null` when it could not be computed. */
  readonly reward: number | null;
  /** Rewards of single traces and completions. They have an effect only when `reward` is not `null`. Default: none. */
  readonly explicit?: ExplicitRewards;
  readonly error: string | null;
  readonly metadata: Readonly<Record<string, unknown>>;
};

/**
 * Turns the completions of one attempt into traces: builds the token graph, runs the builder and audits the traces. A session without
 * trainable completions has no traces. Throws `unknown_builder` or `schema_violation` for an invalid `spec`, `builder_failed` for a failing
 * custom builder and `audit_failed` when the audit finds an error.
 */
export function buildTraces(request: TracesRequest): BuiltTraces {
  const builder = (request.builders ?? builderRegistry()).get(request.spec.strategy);
  const graph = buildGraph(request.completions, request.graphOptions);
  const { traces, excluded, credit } = builder.build(graph, request.spec.config);
  const { audit, tallies } = auditTraces(graph, traces, excluded);
  return { builder: builder.name, graph, traces, credit, audit, tallies };
}

/** Builds the traces of one attempt and encodes its trajectory as {@link encodeTrajectory} does. Throws as {@link buildTraces} does. */
export function buildTrajectory(request: TracesRequest & TrajectoryEnding): BuiltTraces & { readonly json: Buffer } {
  const built = buildTraces(request);
  return { ...built, json: encodeTrajectory(built, request) };
}

/**
 * Estimated number of bytes of one token in a trajectory's JSON: its id, mask, logprob and share of the messages. A good estimate avoids
 * re-allocations.
 */
const EXPECTED_BYTES_PER_TOKEN = 28;
/** Number of base64 characters per byte of data. */
const BASE64_GROWTH = 4 / 3;

/**
 * Encodes a trajectory as JSON in UTF-8 that `trajectorySchema` accepts. A logprob is written as the shortest decimal from which its float32
 * is restored by reading the decimal as a double and rounding it. Logprobs must be finite.
 */
export function encodeTrajectory(built: BuiltTraces, ending: TrajectoryEnding): Buffer {
  const { traces, graph, credit } = built;
  const bytes = traces.reduce((sum, { ids, routedExperts }) => {
    return sum + ids.length * EXPECTED_BYTES_PER_TOKEN + (routedExperts?.data.length ?? 0) * BASE64_GROWTH;
  }, 0);
  const out = new JsonWriter(Math.ceil(bytes));
  const session: SessionFacts = {
    traceCount: traces.length,
    credit,
    shares: rewardShares(traces, credit, ending.reward),
    explicit: ending.reward === null ? NO_EXPLICIT_REWARDS : (ending.explicit ?? NO_EXPLICIT_REWARDS),
    mixtures: mixturesOf(graph),
    marks: new MarkCounter(),
  };
  out.raw(`{"status":${JSON.stringify(ending.status)},"builder":${JSON.stringify(built.builder)},"traces":[`);
  traces.forEach((trace, index) => {
    if (index > 0) out.raw(',');
    writeTrace(out, trace, index, session);
  });
  const images = new Set<string>();
  out.raw('],"images":');
  out.strings(graph.nodes.flatMap(({ completion }) => imagesNotIn(images, completion.request.images)));
  out.raw(',"audit":');
  out.value(built.audit);
  out.raw(',"error":');
  out.value(ending.error);
  out.raw(',"metadata":');
  out.value(ending.metadata);
  out.raw('}');
  return out.finish();
}

/** Returns the id of a trace. `index` is its position among the traces of the session. */
export function traceIdOf({ nodes }: BuiltTrace, index: number): string {
  const first = nodes[0]?.completion;
  return `${first?.sessionId}.${first?.attempt}.${index}`;
}

function writeTrace(out: JsonWriter, trace: BuiltTrace, index: number, session: SessionFacts): void {
  const first = trace.nodes[0]?.completion;
  const last = trace.nodes.at(-1)?.completion;
  const traceId = traceIdOf(trace, index);
  const reward = session.explicit.traces.get(traceId) ?? session.shares.reward;
  out.raw(`{"trace_id":${JSON.stringify(traceId)},"prompt_ids":`);
  out.ints(trace.ids.subarray(0, trace.promptLength));
  out.raw(',"response_ids":');
  out.ints(trace.ids.subarray(trace.promptLength));
  out.raw(',"loss_mask":');
  out.digits(trace.lossMask);
  out.raw(',"response_logprobs":');
  out.floats(trace.logprobs);
  out.raw(',"version_spans":');
  out.value(trace.versionSpans);
  out.raw(',"constrained_spans":');
  out.value(trace.constrainedSpans);
  out.raw(',"prompt_messages":');
  out.texts(first?.request.messageTexts ?? []);
  out.raw(',"response_messages":');
  out.texts(responseTexts(trace.nodes));
  out.raw(`,"tools":${first?.request.toolsText || '[]'},"routed_experts":`);
  writeExperts(out, trace.routedExperts);
  out.raw(',"finish_reason":');
  out.value(last?.finishReason ?? null);
  out.raw(',"reward":');
  out.value(reward);
  out.raw(',"completion_ids":');
  out.value(trace.nodes.map((node) => node.completion.completionId));
  out.raw(',"metadata":');
  out.value(traceMetadata(trace, index, reward, session));
  out.raw('}');
}

function writeExperts(out: JsonWriter, experts: RoutedExperts | null): void {
  if (experts === null) {
    out.raw('null');
    return;
  }
  const { dtype, shape, start, data } = experts;
  out.raw(`{"dtype":"${dtype}","shape":[${shape.join()}],"start":${start},"data":`);
  out.base64(data);
  out.raw('}');
}
