import { JsonWriter } from '@floe-rl/core';
import { completionFields, type RoutedExpertsRecord, snakeCase } from '@floe-rl/core/schema';
import type { RoutedExperts } from '../reply.ts';
import { sharedMessages } from './codec.ts';
import type { Completion, CompletionRequest } from './completion.ts';
import { buildGraph, type GraphNode, type TokenGraph } from './graph.ts';
import { imagesNotIn } from './images.ts';

/** A field of a completion or of its request. `key` is the field's name in a JSON record, as JSON text with a colon after it. */
type Field<Owner> = { readonly name: keyof Owner; readonly key: string };

const NAMES = fieldsOf<Completion>(completionFields.names);
const ORIGIN = fieldsOf<Completion>(completionFields.origin);
const SAMPLING = fieldsOf<CompletionRequest>(completionFields.sampling);
const REPLY = fieldsOf<Completion>(completionFields.reply);
const TIMINGS = fieldsOf<Completion>(completionFields.timings);
const MARKS = fieldsOf<Completion>(completionFields.marks);

function fieldsOf<Owner>(group: Partial<Record<keyof Owner, unknown>>): readonly Field<Owner>[] {
  return (Object.keys(group) as (keyof Owner & string)[]).map((name) => ({
    name,
    key: `${JSON.stringify(snakeCase(name))}:`,
  }));
}

/** Estimated number of bytes of a record without its ids and messages. A good estimate avoids re-allocations of the output. */
const EXPECTED_BYTES_PER_RECORD = 2048;
/** Estimated number of bytes per token of a record, including its share of the messages. */
const EXPECTED_BYTES_PER_TOKEN = 24;

/**
 * Encodes a session's completions as the JSON of `CompletionRecord[]`, ordered by the arrival of their requests. Each record omits the
 * leading prompt ids and messages that it shares with the completion that it continues or forks from. `graph` must be the graph of the same
 * completions. Throws `internal` as {@link buildGraph} does.
 */
export function encodeRecords(completions: readonly Completion[], graph: TokenGraph = buildGraph(completions)): Buffer {
  const { nodes } = graph;
  const tokens = nodes.reduce((sum, { completion, sharedLength }) => {
    return sum + completion.promptIds.length - sharedLength + completion.responseIds.length;
  }, 0);
  const out = new JsonWriter(nodes.length * EXPECTED_BYTES_PER_RECORD + tokens * EXPECTED_BYTES_PER_TOKEN);
  const images = new Set<string>();
  out.raw('[');
  nodes.forEach((node, index) => {
    if (index > 0) out.raw(',');
    writeRecord(out, node, images);
  });
  out.raw(']');
  return out.finish();
}

/** Writes a record. `images` are the references of the images that earlier records contain. */
function writeRecord(out: JsonWriter, node: GraphNode, images: Set<string>): void {
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
  out.raw(',"images":');
  out.strings(imagesNotIn(images, c.request.images));
  const sameTools = base !== null && base.request.toolsText === c.request.toolsText;
  out.raw(`,"tools":${sameTools ? 'null' : c.request.toolsText || '[]'},${membersOf(c.request, SAMPLING)}`);
  out.raw(`},"prompt":{"base":${JSON.stringify(baseId)},"keep":${sharedLength},"ids":`);
  out.ints(c.promptIds.subarray(sharedLength));
  out.raw('},"response_ids":');
  out.ints(c.responseIds);
  out.raw(',"response_logprobs":');
  out.floats(c.responseLogprobs);
  out.raw('}');
}

/** Returns the given fields of a completion or of its request as the members of a JSON object, without its braces. */
function membersOf<Owner>(owner: Owner, fields: readonly Field<Owner>[]): string {
  let text = '';
  for (const { name, key } of fields) text += `${text === '' ? '' : ','}${key}${JSON.stringify(owner[name])}`;
  return text;
}

function expertsText(experts: RoutedExperts | null): string {
  if (experts === null) return 'null';
  const { dtype, shape, start, data } = experts;
  const record: RoutedExpertsRecord = { dtype, shape: [...shape], start, data: data.toString('base64') };
  return JSON.stringify(record);
}
