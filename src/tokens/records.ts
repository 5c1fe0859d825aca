import type { RoutedExperts } from '../core/routed-experts.ts';
import type { CompletionRecord, RoutedExpertsRecord } from '../schema/index.ts';
import { sharedMessages } from './codec.ts';
import type { Completion } from './completion.ts';
import { buildGraph, type GraphNode, type TokenGraph } from './graph.ts';
import { JsonWriter } from './json-writer.ts';

/** A record without its ids and messages, as one mostly comes out; only saves re-allocation. */
const EXPECTED_BYTES_PER_RECORD = 2048;
const EXPECTED_BYTES_PER_TOKEN = 24;

/**
 * A session's completions as the JSON of `CompletionRecord[]`, by arrival. Prompt ids and messages are deltas to the
 * completion that each one continues or forks from. `graph`, where it is there already, is theirs. Throws `internal` as
 * {@link buildGraph} does.
 */
export function encodeRecords(completions: readonly Completion[], graph: TokenGraph = buildGraph(completions)): Buffer {
  const { nodes } = graph;
  const tokens = nodes.reduce((sum, { completion, sharedLength }) => {
    return sum + completion.promptIds.length - sharedLength + completion.responseIds.length;
  }, 0);
  const out = new JsonWriter(nodes.length * EXPECTED_BYTES_PER_RECORD + tokens * EXPECTED_BYTES_PER_TOKEN);
  out.raw('[');
  nodes.forEach((node, index) => {
    if (index > 0) out.raw(',');
    writeRecord(out, node);
  });
  out.raw(']');
  return out.finish();
}

function writeRecord(out: JsonWriter, node: GraphNode): void {
  const { completion: c, link, sharedLength } = node;
  const base = (node.parent ?? node.forkOf)?.completion ?? null;
  const baseId = base?.completionId ?? null;
  const keep = base === null ? 0 : sharedMessages(c, base);
  const head: Head = {
    completion_id: c.completionId,
    session_id: c.sessionId,
    attempt: c.attempt,
    index: c.index,
    timestamp: new Date(c.timestampMs).toISOString(),
    dialect: c.dialect,
    call_kind: c.callKind,
    thread: c.thread,
    link,
    drift: node.drift,
    capture: c.capture,
    version_spans: [...c.versionSpans],
    routed_experts: c.routedExperts && expertsRecord(c.routedExperts),
    message: c.message,
    engine_call_ids: [...c.engineCallIds],
    finish_reason: c.finishReason,
    stop: c.stop,
    engine_id: c.engineId,
    model: c.model,
    usage: c.usage,
    timings: { engine_ms: c.engineMs, total_ms: c.totalMs },
    abandoned: c.abandoned,
    auxiliary: c.auxiliary,
    undelivered: c.undelivered,
  };
  out.raw(
    `${JSON.stringify(head).slice(0, -1)},"request":{"base":${JSON.stringify(baseId)},"keep":${keep},"messages":`,
  );
  out.texts(c.request.messageTexts.slice(keep));
  const sameTools = base !== null && base.request.toolsText === c.request.toolsText;
  out.raw(`,"tools":${sameTools ? 'null' : c.request.toolsText || '[]'},"sampling_asked":`);
  out.value(c.request.samplingAsked);
  out.raw(',"sampling":');
  out.value(c.request.sampling);
  out.raw(',"adjusted":');
  out.value(c.request.adjusted);
  out.raw(`},"prompt":{"base":${JSON.stringify(baseId)},"keep":${sharedLength},"ids":`);
  out.ints(c.promptIds.subarray(sharedLength));
  out.raw('},"response_ids":');
  out.ints(c.responseIds);
  out.raw(',"response_logprobs":');
  out.floats(c.responseLogprobs);
  out.raw('}');
}

function expertsRecord({ dtype, shape, start, data }: RoutedExperts): RoutedExpertsRecord {
  return { dtype, shape: [...shape], start, data: data.toString('base64') };
}

type Head = Omit<CompletionRecord, 'request' | 'prompt' | 'response_ids' | 'response_logprobs'>;
