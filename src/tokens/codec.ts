import { endianness } from 'node:os';
import { z } from 'zod';
import { FloeError } from '../core/errors.ts';
import { parseAs, parseJson } from '../core/parse.ts';
import type { RoutedExperts } from '../core/reply.ts';
import { chatMessageSchema, chatToolSchema } from '../schema/index.ts';
import { type Completion, type CompletionRequest, completionHeadSchema, requestSamplingSchema } from './completion.ts';
import { bytesOf, sharedLength } from './sequence.ts';

/**
 * The binary form of one completion, called a record, with little-endian numbers:
 *
 *     "FLC3" | byte count of the header | header JSON | texts | prompt ids | response ids | logprobs | routed experts
 *
 * `texts` are the JSON texts of the messages and then of the tools, without separators; the header holds their sizes and all counts. A
 * record may refer to an earlier completion of the session, its base, and then omits what both have in common: leading ids of the prompt,
 * leading messages, the tools. A record has no checksum, because the journal's frame around it has one.
 */
const MAGIC = Buffer.from('FLC3');
const HEADER_SIZE_AT = 4;
const HEADER_AT = 8;
const BYTES_PER_NUMBER = 4;

/**
 * Maximum number of completions of a session, counted from the latest, among which a base is searched. More agents than this rarely run
 * concurrently in one session, and a base from further back would only save bytes.
 */
const BASE_CANDIDATES = 16;

const count = z.int().min(0);

const expertsSchema = z.object({
  dtype: z.enum(['uint8', 'uint16', 'int32']),
  shape: z.tuple([count, count, count]),
  start: count,
  bytes: count,
});

const layoutSchema = z.object({
  /** Id of the completion whose parts this record omits; `null` when the record contains everything. */
  base: z.string().nullable(),
  /** Number of leading prompt ids that the record omits because the base's prompt followed by its response starts with the same ids. */
  promptKeep: count,
  promptTail: count,
  responseLength: count,
  messagesKeep: count,
  messageBytes: z.array(count),
  /** Size of the tools' JSON text in bytes; `null` when the record omits it because the base has the same tools. */
  toolsBytes: count.nullable(),
  experts: expertsSchema.nullable(),
});

const headerSchema = completionHeadSchema.extend(requestSamplingSchema.shape).extend(layoutSchema.shape);
type Header = z.infer<typeof headerSchema>;

/**
 * Encodes a completion as a record. Parts that `base`, which {@link chooseBase} selects, has as well are omitted, and the decoder then
 * needs `base`. When `base` is `null`, the record contains everything.
 */
export function encodeCompletion(completion: Completion, base: Completion | null): Buffer {
  const { request, promptIds, responseIds, responseLogprobs, routedExperts, ...head } = completion;
  const promptKeep = base === null ? 0 : sharedIds(completion, base);
  const messagesKeep = base === null ? 0 : sharedMessages(completion, base);
  const sameTools = base !== null && base.request.toolsText === request.toolsText;
  const texts = request.messageTexts.slice(messagesKeep).map((text) => Buffer.from(text));
  const tools = sameTools ? null : Buffer.from(request.toolsText);
  const { samplingAsked, sampling, adjusted } = request;
  const fields: Header = {
    ...head,
    versionSpans: [...head.versionSpans],
    engineCallIds: [...head.engineCallIds],
    experts: routedExperts && { ...expertsOf(routedExperts), bytes: routedExperts.data.length },
    samplingAsked,
    sampling,
    adjusted: [...adjusted],
    base: base?.completionId ?? null,
    promptKeep,
    promptTail: promptIds.length - promptKeep,
    responseLength: responseIds.length,
    messagesKeep,
    messageBytes: texts.map((text) => text.length),
    toolsBytes: tools?.length ?? null,
  };
  const header = Buffer.from(JSON.stringify(fields));
  const preamble = Buffer.allocUnsafe(HEADER_AT);
  MAGIC.copy(preamble);
  preamble.writeUInt32LE(header.length, HEADER_SIZE_AT);
  return Buffer.concat([
    preamble,
    header,
    ...texts,
    tools ?? Buffer.alloc(0),
    littleEndian(promptIds.subarray(promptKeep)),
    littleEndian(responseIds),
    littleEndian(responseLogprobs),
    routedExperts?.data ?? Buffer.alloc(0),
  ]);
}

/**
 * Decodes a record that {@link encodeCompletion} made. The result shares no memory with `record`. `lookupBase` returns the earlier
 * completion with an id. Throws `corrupt_record` when a size is wrong or the base is missing, and `malformed_json` or `schema_violation`
 * when the header is damaged or has the form of another version.
 */
export function decodeCompletion(
  record: Buffer,
  lookupBase: (completionId: string) => Completion | undefined,
): Completion {
  const { header, bodyAt } = readHeader(record);
  const base = baseOf(header, lookupBase);
  const reader = { record, at: bodyAt };
  const { promptKeep, promptTail, responseLength, messageBytes, toolsBytes, experts, ...fields } = header;
  const { base: _base, messagesKeep: _keep, samplingAsked, sampling, adjusted, ...head } = fields;
  const ownTexts = messageBytes.map((bytes) => takeText(reader, bytes));
  const toolsText = toolsBytes === null ? base?.request.toolsText : takeText(reader, toolsBytes);
  if (toolsText === undefined) throw corrupt('uses the tools of a base that it does not name');
  const promptIds = new Int32Array(promptKeep + promptTail);
  if (base !== null) copyLeading(base, promptIds, promptKeep);
  promptIds.set(new Int32Array(takeNumbers(reader, promptTail)), promptKeep);
  const responseIds = new Int32Array(takeNumbers(reader, responseLength));
  const responseLogprobs = new Float32Array(takeNumbers(reader, responseLength));
  const routedExperts = experts && { ...expertsOf(experts), data: Buffer.from(take(reader, experts.bytes)) };
  if (reader.at !== record.length) throw corrupt('has bytes after its end');
  const request = { ...conversationOf(header, base, ownTexts, toolsText), samplingAsked, sampling, adjusted };
  return { ...head, request, promptIds, responseIds, responseLogprobs, routedExperts };
}

type ExpertsHead = Omit<RoutedExperts, 'data'>;

function expertsOf({
  dtype,
  shape,
  start,
}: ExpertsHead): Pick<z.infer<typeof expertsSchema>, 'dtype' | 'shape' | 'start'> {
  return { dtype, shape: [...shape], start };
}

/**
 * Returns the session and the attempt that a record's completion belongs to. Throws the errors of {@link decodeCompletion} that concern
 * the header.
 */
export function attemptOf(record: Buffer): { readonly sessionId: string; readonly attempt: number } {
  const { sessionId, attempt } = readHeader(record).header;
  return { sessionId, attempt };
}

/**
 * Returns the completion of `earlier` whose prompt followed by its response shares the longest prefix with the prompt of `completion`;
 * `null` when none shares a single id. Considers only the latest {@link BASE_CANDIDATES}. A candidate that cannot share more than the best
 * one so far is skipped after a comparison of one id, so a session that continues turn by turn costs one comparison of whole prompts.
 */
export function chooseBase(completion: Completion, earlier: readonly Completion[]): Completion | null {
  let best: Completion | null = null;
  let longest = 0;
  const oldest = Math.max(0, earlier.length - BASE_CANDIDATES);
  for (let i = earlier.length - 1; i >= oldest; i--) {
    const candidate = earlier[i] as Completion;
    if (idAt(candidate, longest) !== completion.promptIds[longest]) continue;
    const shared = sharedIds(completion, candidate);
    if (shared <= longest) continue;
    longest = shared;
    best = candidate;
  }
  return best;
}

/** Returns the id at `index` of the completion's prompt followed by its response; `undefined` when `index` is beyond the end. */
function idAt({ promptIds, responseIds }: Completion, index: number): number | undefined {
  return index < promptIds.length ? promptIds[index] : responseIds[index - promptIds.length];
}

/** Returns the number of leading prompt ids of `completion` that equal those of the base's prompt followed by its response. */
export function sharedIds(completion: Completion, base: Completion): number {
  const ids = completion.promptIds;
  const { promptIds, responseIds } = base;
  const inPrompt = sharedLength(ids, 0, ids.length, promptIds, 0, promptIds.length);
  if (inPrompt < promptIds.length) return inPrompt;
  return inPrompt + sharedLength(ids, inPrompt, ids.length, responseIds, 0, responseIds.length);
}

/** Returns the number of leading messages that the requests of two completions share. */
export function sharedMessages(a: Completion, b: Completion): number {
  const aTexts = a.request.messageTexts;
  const bTexts = b.request.messageTexts;
  const length = Math.min(aTexts.length, bTexts.length);
  let shared = 0;
  while (shared < length && aTexts[shared] === bTexts[shared]) shared++;
  return shared;
}

function readHeader(record: Buffer): { header: Header; bodyAt: number } {
  if (record.length < HEADER_AT || !record.subarray(0, MAGIC.length).equals(MAGIC)) {
    throw corrupt('is not a completion');
  }
  const bodyAt = HEADER_AT + record.readUInt32LE(HEADER_SIZE_AT);
  if (bodyAt > record.length) throw corrupt('is cut off in its header');
  const header = parseAs(headerSchema, parseJson(record.subarray(HEADER_AT, bodyAt)), 'completion record');
  return { header, bodyAt };
}

function baseOf(header: Header, lookupBase: (completionId: string) => Completion | undefined): Completion | null {
  if (header.base === null) {
    if (header.promptKeep > 0 || header.messagesKeep > 0)
      throw corrupt('repeats parts of a base that it does not name');
    return null;
  }
  const base = lookupBase(header.base);
  if (base === undefined) throw corrupt(`needs completion ${header.base}, which is missing`);
  const ids = base.promptIds.length + base.responseIds.length;
  if (header.promptKeep > ids || header.messagesKeep > base.request.messages.length) {
    throw corrupt(`repeats more of completion ${header.base} than that has`);
  }
  return base;
}

function conversationOf(
  header: Header,
  base: Completion | null,
  ownTexts: readonly string[],
  toolsText: string,
): Pick<CompletionRequest, 'messages' | 'messageTexts' | 'tools' | 'toolsText'> {
  const kept = base?.request;
  const own = ownTexts.map((text) => parseAs(chatMessageSchema, parseJson(text), 'completion record: message'));
  const tools =
    header.toolsBytes === null && kept !== undefined
      ? kept.tools
      : parseAs(z.array(chatToolSchema), toolsText === '' ? [] : parseJson(toolsText), 'completion record: tools');
  return {
    messages: [...(kept?.messages.slice(0, header.messagesKeep) ?? []), ...own],
    messageTexts: [...(kept?.messageTexts.slice(0, header.messagesKeep) ?? []), ...ownTexts],
    tools,
    toolsText,
  };
}

/** Copies the first `keep` ids of the base's prompt followed by its response to the start of `target`. */
function copyLeading(base: Completion, target: Int32Array, keep: number): void {
  const fromPrompt = Math.min(keep, base.promptIds.length);
  target.set(base.promptIds.subarray(0, fromPrompt));
  target.set(base.responseIds.subarray(0, keep - fromPrompt), fromPrompt);
}

type Reader = { readonly record: Buffer; at: number };

function take(reader: Reader, bytes: number): Buffer {
  const end = reader.at + bytes;
  if (end > reader.record.length) throw corrupt('is cut off');
  const taken = reader.record.subarray(reader.at, end);
  reader.at = end;
  return taken;
}

function takeText(reader: Reader, bytes: number): string {
  return take(reader, bytes).toString('utf8');
}

/** Reads `count` four-byte numbers. Returns an aligned copy in the machine's byte order. */
function takeNumbers(reader: Reader, count: number): ArrayBuffer {
  const copy = Uint8Array.from(take(reader, count * BYTES_PER_NUMBER));
  inMachineOrder(Buffer.from(copy.buffer));
  return copy.buffer;
}

function littleEndian(numbers: Int32Array | Float32Array): Buffer {
  const bytes = bytesOf(numbers);
  return endianness() === 'LE' ? bytes : Buffer.from(bytes).swap32();
}

function inMachineOrder(bytes: Buffer): void {
  if (endianness() !== 'LE') bytes.swap32();
}

function corrupt(what: string): FloeError {
  return new FloeError('corrupt_record', `a stored completion ${what}`);
}
