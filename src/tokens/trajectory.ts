import type { RoutedExperts } from '../core/reply.ts';
import type { AssistantMessage, Audit, ChatMessage, StrategySpec, TerminalStatus } from '../schema/index.ts';
import { type AuditTally, auditTraces } from './audit.ts';
import type { BuiltTrace, Credit } from './builders/builder.ts';
import { sharesOf } from './builders/credit.ts';
import { type BuilderRegistry, builderRegistry } from './builders/registry.ts';
import type { Completion } from './completion.ts';
import { buildGraph, type GraphNode, type GraphOptions, type TokenGraph } from './graph.ts';
import { JsonWriter } from './json-writer.ts';
import { mixturesOf, type SessionFacts, traceMetadata } from './trace-metadata.ts';

export type TrajectoryRequest = {
  readonly spec: StrategySpec;
  /** All of one attempt, in any order. */
  readonly completions: readonly Completion[];
  /** Default: those that floe brings. */
  readonly builders?: BuilderRegistry;
  readonly graphOptions?: GraphOptions;
  readonly status: TerminalStatus;
  /** Of the session; what a trace gets of it is the builder's `credit`. Null: could not be computed. */
  readonly reward: number | null;
  readonly error: string | null;
  readonly metadata: Readonly<Record<string, unknown>>;
};

export type EncodedTrajectory = {
  /** JSON of a {@link import('../schema/index.ts').Trajectory}, UTF-8. */
  readonly json: Buffer;
  readonly audit: Audit;
  /** The audit's numbers by dialect and engine. */
  readonly tallies: readonly AuditTally[];
  readonly graph: TokenGraph;
  readonly traceCount: number;
  readonly trainableTokens: number;
};

/**
 * A session's completions as a trajectory: graph, builder, audit, JSON. A session of which nothing can be trained has no traces. Throws
 * `unknown_builder` or `schema_violation` for the spec, `builder_failed` for a custom builder and `audit_failed` when the token sums
 * do not hold.
 */
export function buildTrajectory(request: TrajectoryRequest): EncodedTrajectory {
  const builder = (request.builders ?? builderRegistry()).get(request.spec.strategy);
  const graph = buildGraph(request.completions, request.graphOptions);
  const { traces, excluded, credit } = builder.build(graph, request.spec.config);
  const { audit, tallies } = auditTraces(graph, traces, excluded);
  return {
    json: encodeTrajectory({ ...request, builder: builder.name, traces, credit, graph, audit }),
    audit,
    tallies,
    graph,
    traceCount: traces.length,
    trainableTokens: audit.tokens.trained,
  };
}

type TrajectoryParts = Omit<TrajectoryRequest, 'spec' | 'completions'> & {
  readonly builder: string;
  readonly traces: readonly BuiltTrace[];
  readonly credit: Credit;
  readonly graph: TokenGraph;
  readonly audit: Audit;
};

/** An id, its mask, a logprob where it was sampled, and its share of the messages, as they mostly come out; only saves re-allocation. */
const EXPECTED_BYTES_PER_TOKEN = 28;
/** Base64 has four characters for three bytes. */
const BASE64_GROWTH = 4 / 3;

/**
 * A trajectory as JSON that `trajectorySchema` accepts. A logprob is the shortest decimal that restores its float32,
 * read as a double and rounded. Logprobs must be finite.
 */
function encodeTrajectory(parts: TrajectoryParts): Buffer {
  const { traces } = parts;
  const bytes = traces.reduce((sum, { ids, routedExperts }) => {
    return sum + ids.length * EXPECTED_BYTES_PER_TOKEN + (routedExperts?.data.length ?? 0) * BASE64_GROWTH;
  }, 0);
  const out = new JsonWriter(Math.ceil(bytes));
  const session: SessionFacts = {
    traceCount: traces.length,
    credit: parts.credit,
    shares: sharesOf(traces, parts.credit, parts.reward),
    mixtures: mixturesOf(parts.graph),
  };
  out.raw(`{"status":${JSON.stringify(parts.status)},"builder":${JSON.stringify(parts.builder)},"traces":[`);
  traces.forEach((trace, index) => {
    if (index > 0) out.raw(',');
    writeTrace(out, trace, index, session);
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

function writeTrace(out: JsonWriter, trace: BuiltTrace, index: number, session: SessionFacts): void {
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
  writeExperts(out, trace.routedExperts);
  out.raw(',"finish_reason":');
  out.value(last?.finishReason ?? null);
  out.raw(',"reward":');
  out.value(session.shares.reward);
  out.raw(',"completion_ids":');
  out.value(trace.nodes.map((node) => node.completion.completionId));
  out.raw(',"metadata":');
  out.value(traceMetadata(trace, index, session));
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

/** The replies, and the messages that each later request put after the reply before it. */
function responseTexts(nodes: readonly GraphNode[]): string[] {
  const texts: string[] = [];
  let before: Completion | null = null;
  for (const { completion } of nodes) {
    const { messages, messageTexts } = completion.request;
    if (before !== null) {
      const place = before.request.messages.length;
      const given = messages[place];
      // As JSON already where the harness gave it back as it is, which is most of the time: writing it takes as long as all the ids.
      const same = given?.role === 'assistant' && sameReply(given, before.message);
      texts.push(same ? (messageTexts[place] as string) : JSON.stringify(before.message));
      for (let at = behindReply(messages, place); at < messageTexts.length; at++)
        texts.push(messageTexts[at] as string);
    }
    before = completion;
  }
  if (before !== null) texts.push(JSON.stringify(before.message));
  return texts;
}

function sameReply(a: AssistantMessage, b: AssistantMessage): boolean {
  const [some, others] = [a.tool_calls ?? [], b.tool_calls ?? []];
  return (
    a.content === b.content &&
    a.reasoning_content === b.reasoning_content &&
    some.length === others.length &&
    some.every(({ id, function: one }, place) => {
      const other = others[place];
      return id === other?.id && one.name === other.function.name && one.arguments === other.function.arguments;
    })
  );
}

/** A dialect may give one reply back as several assistant messages, reasoning apart from text for instance. */
function behindReply(messages: readonly ChatMessage[], from: number): number {
  let at = from;
  while (messages[at]?.role === 'assistant') at++;
  return at;
}
