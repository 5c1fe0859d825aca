import type { RoutedExperts } from '../core/reply.ts';
import {
  type CompletionRecord,
  completionFields,
  type RoutedExpertsRecord,
  type SnakeCased,
  snakeCase,
} from '../schema/index.ts';
import { sharedMessages } from './codec.ts';
import type { Completion, ReadonlyFields } from './completion.ts';
import { buildGraph, type GraphNode, type TokenGraph } from './graph.ts';
import { JsonWriter } from './json-writer.ts';

type FieldNames<Fields> = readonly (readonly [name: keyof Fields & keyof Completion, recordName: string])[];

const NAMES = fieldNames(completionFields.names);
const ORIGIN = fieldNames(completionFields.origin);
const REPLY = fieldNames(completionFields.reply);
const TIMINGS = fieldNames(completionFields.timings);
const MARKS = fieldNames(completionFields.marks);

function fieldNames<Fields extends object>(fields: Fields): FieldNames<Fields> {
  return Object.keys(fields).map((name) => [name as keyof Fields & keyof Completion, snakeCase(name)]);
}

/** A record without the fields that are written as columns. */
type RecordHead = ReadonlyFields<Omit<CompletionRecord, 'request' | 'prompt' | 'response_ids' | 'response_logprobs'>>;

/** Typical size of a record without its ids and messages. A good estimate only saves re-allocations of the output. */
const EXPECTED_BYTES_PER_RECORD = 2048;
const EXPECTED_BYTES_PER_TOKEN = 24;

/**
 * A session's completions as the JSON of `CompletionRecord[]`, by arrival. Prompt ids and messages are deltas to the
 * completion that each one continues or forks from. `graph` must be the graph of the same completions. Throws `internal` as
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
  const head: RecordHead = {
    ...snakeCased(c, NAMES),
    timestamp: new Date(c.timestampMs).toISOString(),
    ...snakeCased(c, ORIGIN),
    link,
    drift: node.drift,
    capture: c.capture,
    version_spans: c.versionSpans,
    routed_experts: c.routedExperts && expertsRecord(c.routedExperts),
    ...snakeCased(c, REPLY),
    timings: snakeCased(c, TIMINGS),
    ...snakeCased(c, MARKS),
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

/** A group of the completion's fields under the names that they have in a record. */
function snakeCased<Fields>(
  completion: Completion,
  names: FieldNames<Fields>,
): SnakeCased<Pick<Completion, keyof Fields & keyof Completion>> {
  const record: Record<string, unknown> = {};
  for (const [name, recordName] of names) record[recordName] = completion[name];
  return record as SnakeCased<Pick<Completion, keyof Fields & keyof Completion>>;
}

function expertsRecord({ dtype, shape, start, data }: RoutedExperts): RoutedExpertsRecord {
  return { dtype, shape: [...shape], start, data: data.toString('base64') };
}
