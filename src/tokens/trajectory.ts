import type { Audit, ChatMessage, LinkKind, StrategySpec, TerminalStatus } from '../schema/index.ts';
import { auditTraces } from './audit.ts';
import type { BuiltTrace } from './builders/builder.ts';
import { builderOf } from './builders/registry.ts';
import type { Completion } from './completion.ts';
import { buildGraph, type GraphNode } from './graph.ts';
import { JsonWriter } from './json-writer.ts';

export type TrajectoryRequest = {
  readonly spec: StrategySpec;
  /** All of one attempt, in any order. */
  readonly completions: readonly Completion[];
  readonly status: TerminalStatus;
  /** Given to every trace of the session; null: could not be computed. */
  readonly reward: number | null;
  readonly error: string | null;
  readonly metadata: Readonly<Record<string, unknown>>;
};

export type EncodedTrajectory = {
  /** JSON of a {@link import('../schema/index.ts').Trajectory}, UTF-8. */
  readonly json: Buffer;
  readonly audit: Audit;
  readonly traceCount: number;
  readonly trainableTokens: number;
};

/**
 * A session's completions as a trajectory: graph, builder, audit, JSON. Throws `unknown_builder` or `schema_violation`
 * for the spec and `audit_failed` when the token sums do not hold.
 */
export function buildTrajectory(request: TrajectoryRequest): EncodedTrajectory {
  const builder = builderOf(request.spec.strategy);
  const graph = buildGraph(request.completions);
  const { traces, excluded } = builder.build(graph, request.spec.config);
  const audit = auditTraces(graph, traces, excluded);
  return {
    json: encodeTrajectory({ ...request, builder: builder.name, traces, audit }),
    audit,
    traceCount: traces.length,
    trainableTokens: audit.tokens.trained,
  };
}

export type TrajectoryParts = Omit<TrajectoryRequest, 'spec' | 'completions'> & {
  readonly builder: string;
  readonly traces: readonly BuiltTrace[];
  readonly audit: Audit;
};

/** Digits of an id or logprob, with their commas and a mask, as they mostly come out; only saves re-allocation. */
const EXPECTED_BYTES_PER_TOKEN = 24;

/**
 * A trajectory as JSON that `trajectorySchema` accepts. A logprob is the shortest decimal that restores its float32,
 * read as a double and rounded. Logprobs must be finite.
 */
export function encodeTrajectory(parts: TrajectoryParts): Buffer {
  const tokens = parts.traces.reduce((sum, trace) => sum + trace.ids.length, 0);
  const out = new JsonWriter(tokens * EXPECTED_BYTES_PER_TOKEN);
  out.raw(`{"status":${JSON.stringify(parts.status)},"builder":${JSON.stringify(parts.builder)},"traces":[`);
  parts.traces.forEach((trace, index) => {
    if (index > 0) out.raw(',');
    writeTrace(out, trace, index, parts);
  });
  out.raw('],"audit":');
  out.value(parts.audit);
  out.raw(',"error":');
  out.value(parts.error);
  out.raw(',"metadata":');
  out.value(parts.metadata);
  out.raw('}');
  return out.finish();
}

function writeTrace(out: JsonWriter, trace: BuiltTrace, index: number, parts: TrajectoryParts): void {
  const first = trace.nodes[0]?.completion;
  const last = trace.nodes.at(-1)?.completion;
  const traceId = `${first?.sessionId}.${first?.attempt}.${index}`;
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
  out.raw(',"prompt_messages":');
  out.texts(first?.request.messageTexts ?? []);
  out.raw(',"response_messages":');
  out.texts(responseTexts(trace.nodes));
  out.raw(`,"tools":${first?.request.toolsText || '[]'},"routed_experts":`);
  out.value(null);
  out.raw(',"finish_reason":');
  out.value(last?.finishReason ?? null);
  out.raw(',"reward":');
  out.value(parts.reward);
  out.raw(',"completion_ids":');
  out.value(trace.nodes.map((node) => node.completion.completionId));
  out.raw(',"metadata":');
  out.value(traceMetadata(trace, index, parts.traces.length));
  out.raw('}');
}

/** The replies, and the messages that each later request put after the reply before it. */
function responseTexts(nodes: readonly GraphNode[]): string[] {
  const texts: string[] = [];
  let seen = 0;
  for (const [position, { completion }] of nodes.entries()) {
    const { messages, messageTexts } = completion.request;
    if (position > 0) texts.push(...messageTexts.slice(behindReply(messages, seen)));
    texts.push(JSON.stringify(completion.message));
    seen = messages.length;
  }
  return texts;
}

/** A dialect may give one reply back as several assistant messages, reasoning apart from text for instance. */
function behindReply(messages: readonly ChatMessage[], from: number): number {
  let at = from;
  while (messages[at]?.role === 'assistant') at++;
  return at;
}

type TraceMetadata = {
  readonly call_kind: string;
  readonly thread: string;
  /** Traces of this session, this one included: by which a trainer may divide credit. */
  readonly trace_count: number;
  readonly trace_index: number;
  /** How each completion of the trace is linked, in order. The first one's link tells why the trace begins. */
  readonly links: readonly LinkKind[];
  /** The completion that the first one continues or forks from; null for a root. */
  readonly continues: string | null;
};

function traceMetadata(trace: BuiltTrace, index: number, count: number): TraceMetadata | Record<string, never> {
  const first = trace.nodes[0];
  const last = trace.nodes.at(-1);
  if (first === undefined || last === undefined) return {};
  return {
    call_kind: last.completion.callKind,
    thread: last.completion.thread,
    trace_count: count,
    trace_index: index,
    links: trace.nodes.map((node) => node.link),
    continues: (first.parent ?? first.forkOf)?.completion.completionId ?? null,
  };
}
