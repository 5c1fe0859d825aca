import type { RoutedExperts } from '../core/reply.ts';
import { completionFields, type RoutedExpertsRecord, snakeCase } from '../schema/index.ts';
import { sharedMessages } from './codec.ts';
import type { Completion } from './completion.ts';
import { buildGraph, type GraphNode, type TokenGraph } from './graph.ts';
import { JsonWriter } from './json-writer.ts';

/** A field of a completion. `key` is the field's name in a record as JSON text, followed by a colon. */
type Field = { readonly name: keyof Completion; readonly key: string };

const NAMES = fieldsOf(completionFields.names);
const ORIGIN = fieldsOf(completionFields.origin);
const REPLY = fieldsOf(completionFields.reply);
const TIMINGS = fieldsOf(completionFields.timings);
const MARKS = fieldsOf(completionFields.marks);

function fieldsOf(group: Partial<Record<keyof Completion, unknown>>): readonly Field[] {
  return (Object.keys(group) as (keyof Completion)[]).map((name) => ({
    name,
    key: `${JSON.stringify(snakeCase(name))}:`,
  }));
}

/** Estimated bytes of a record without its ids and messages. A good estimate avoids re-allocations of the output. */
const EXPECTED_BYTES_PER_RECORD = 2048;
const EXPECTED_BYTES_PER_TOKEN = 24;

/**
 * Encodes a session's completions as the JSON of `CompletionRecord[]`, ordered by arrival. Each record contains only those prompt ids and
 * messages that differ from the completion that it continues or forks from. `graph` must be the graph of the same completions. Throws
 * `internal` as {@link buildGraph} does.
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
  out.raw(
    `{${membersOf(c, NAMES)},"timestamp":"${new Date(c.timestampMs).toISOString()}",${membersOf(c, ORIGIN)},"link":"${link}",` +
      `"drift":${JSON.stringify(node.drift)},"capture":${JSON.stringify(c.capture)},` +
      `"version_spans":${JSON.stringify(c.versionSpans)},"routed_experts":${expertsText(c.routedExperts)},` +
      `${membersOf(c, REPLY)},"timings":{${membersOf(c, TIMINGS)}},${membersOf(c, MARKS)},` +
      `"request":{"base":${JSON.stringify(baseId)},"keep":${keep},"messages":`,
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

/** Writes the given fields of a completion as the members of a JSON object, without its braces. */
function membersOf(completion: Completion, fields: readonly Field[]): string {
  let text = '';
  for (const { name, key } of fields) text += `${text === '' ? '' : ','}${key}${JSON.stringify(completion[name])}`;
  return text;
}

function expertsText(experts: RoutedExperts | null): string {
  if (experts === null) return 'null';
  const { dtype, shape, start, data } = experts;
  const record: RoutedExpertsRecord = { dtype, shape: [...shape], start, data: data.toString('base64') };
  return JSON.stringify(record);
}
