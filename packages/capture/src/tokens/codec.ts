import { endianness } from 'node:os';
import { FloeError, parseAs, parseJson } from '@floe-rl/core';
import { chatMessageSchema, chatToolSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { RoutedExperts } from '../reply.ts';
import {
  type Completion,
  type CompletionRequest,
  completionHeadSchema,
  type ReadonlyFields,
  requestSamplingSchema,
} from './completion.ts';
import type { ImageUrls } from './images.ts';
import { bytesOf, sharedLength } from './sequence.ts';

/**
 * Magic bytes at the start of a record, the binary form of one completion. A record consists of these parts, with little-endian numbers:
 * magic bytes, byte count of the header, header as JSON, texts, prompt ids, response ids, logprobs, routed experts. The texts are the JSON
 * texts of the messages and of the tools, then the URLs of new images, without separators; the header has their sizes and all counts.
 *
 * A record may refer to an earlier completion of the session, its base. It then omits what both completions have in common: leading ids of
 * the prompt, leading messages, the tools. A record has no checksum, because the frame in which the journal stores it has one.
 */
const MAGIC = Buffer.from('FLC5');
const HEADER_SIZE_AT = 4;
const HEADER_AT = 8;
const BYTES_PER_NUMBER = 4;

/**
 * Number of a session's latest completions that are considered as the base of a new record. The record omits the parts that it shares with its
 * base. A session rarely has more concurrent agents than this, so the completion that a new one continues is usually among them. When it is
 * not, the record is only larger.
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
  /**
   * Id of an earlier completion, called the base. Parts that this record shares with the base are omitted from this record. `null` when the
   * record omits nothing.
   */
  base: z.string().nullable(),
  /** Number of leading prompt ids that this record omits. They are also the first ids of the base's prompt and response, joined. */
  promptKeep: count,
  promptTail: count,
  responseLength: count,
  messagesKeep: count,
  messageBytes: z.array(count),
  /** Size of the tools' JSON text in bytes; `null` when the record omits it because the base has the same tools. */
  toolsBytes: count.nullable(),
  /** Reference and size in bytes of each image that no earlier completion of the session contains. */
  images: z.array(z.object({ reference: z.string(), bytes: count })),
  experts: expertsSchema.nullable(),
});

const headerSchema = completionHeadSchema.extend(requestSamplingSchema.shape).extend(layoutSchema.shape);
type Header = z.infer<typeof headerSchema>;

/**
 * Encodes a completion as a record. The record omits the parts that the completion shares with `base`, an earlier completion that {@link
 * chooseBase} selects; decoding then needs `base`. When `base` is `null`, the record contains everything. The result begins with `headroom`
 * bytes that are not part of the record and that the caller fills, so that the record is not copied into a frame.
 */
export function encodeCompletion(completion: Completion, base: Completion | null, headroom = 0): Buffer {
  const { promptIds, responseIds, responseLogprobs, routedExperts } = completion;
  const { messageTexts, toolsText, images } = completion.request;
  const promptKeep = base === null ? 0 : sharedIds(completion, base);
  const messagesKeep = base === null ? 0 : sharedMessages(completion, base);
  const texts = messageTexts.slice(messagesKeep);
  const messageBytes = texts.map(byteLength);
  const sameTools = base !== null && base.request.toolsText === toolsText;
  const toolsBytes = sameTools ? null : byteLength(toolsText);
  if (!sameTools) texts.push(toolsText);
  const imageBytes =
    images.size === 0 ? [] : [...images].map(([reference, url]) => ({ reference, bytes: byteLength(url) }));
  texts.push(...images.values());
  const promptTail = promptKeep === 0 ? promptIds : promptIds.subarray(promptKeep);
  const header = JSON.stringify(
    headerOf(completion, {
      base: base?.completionId ?? null,
      promptKeep,
      promptTail: promptTail.length,
      responseLength: responseIds.length,
      messagesKeep,
      messageBytes,
      toolsBytes,
      images: imageBytes,
      experts: routedExperts && { ...expertsOf(routedExperts), bytes: routedExperts.data.length },
    }),
  );
  const headerBytes = byteLength(header);
  let textBytes = toolsBytes ?? 0;
  for (const bytes of messageBytes) textBytes += bytes;
  for (const { bytes } of imageBytes) textBytes += bytes;
  const numberBytes = (promptTail.length + 2 * responseIds.length) * BYTES_PER_NUMBER;
  const bytes = HEADER_AT + headerBytes + textBytes + numberBytes + (routedExperts?.data.length ?? 0);
  const record = Buffer.allocUnsafe(headroom + bytes);
  MAGIC.copy(record, headroom);
  record.writeUInt32LE(headerBytes, headroom + HEADER_SIZE_AT);
  let at = headroom + HEADER_AT;
  at += record.write(header, at);
  for (const text of texts) at += record.write(text, at);
  for (const numbers of [promptTail, responseIds, responseLogprobs]) at += littleEndian(numbers).copy(record, at);
  routedExperts?.data.copy(record, at);
  return record;
}

function byteLength(text: string): number {
  return Buffer.byteLength(text);
}

/**
 * Returns the header of a record. The fields are named one by one. Copying an object without some of its fields would take several times as
 * long, and every model call has a record.
 */
function headerOf(completion: Completion, layout: z.infer<typeof layoutSchema>): ReadonlyFields<Header> {
  const { samplingAsked, toolChoice, parallelToolCalls, sampling, constraint, adjusted } = completion.request;
  return {
    completionId: completion.completionId,
    sessionId: completion.sessionId,
    attempt: completion.attempt,
    index: completion.index,
    timestampMs: completion.timestampMs,
    dialect: completion.dialect,
    callKind: completion.callKind,
    thread: completion.thread,
    capture: completion.capture,
    versionSpans: completion.versionSpans,
    message: completion.message,
    engineCallIds: completion.engineCallIds,
    finishReason: completion.finishReason,
    stop: completion.stop,
    engineId: completion.engineId,
    model: completion.model,
    usage: completion.usage,
    engineMs: completion.engineMs,
    totalMs: completion.totalMs,
    abandoned: completion.abandoned,
    auxiliary: completion.auxiliary,
    undelivered: completion.undelivered,
    samplingAsked,
    toolChoice,
    parallelToolCalls,
    sampling,
    constraint,
    adjusted,
    base: layout.base,
    promptKeep: layout.promptKeep,
    promptTail: layout.promptTail,
    responseLength: layout.responseLength,
    messagesKeep: layout.messagesKeep,
    messageBytes: layout.messageBytes,
    toolsBytes: layout.toolsBytes,
    images: layout.images,
    experts: layout.experts,
  };
}

/**
 * Decodes a record that {@link encodeCompletion} made. The result shares no memory with `record`. `lookupBase` returns the earlier
 * completion that has a given id. Throws `corrupt_record` when a size is wrong or the base is missing. Throws `malformed_json` or
 * `schema_violation` when the header is damaged or was written by a version with another format.
 */
export function decodeCompletion(
  record: Buffer,
  lookupBase: (completionId: string) => Completion | undefined,
): Completion {
  const { header, bodyAt } = readHeader(record);
  const base = baseOf(header, lookupBase);
  const reader = { record, at: bodyAt };
  const { promptKeep, promptTail, responseLength, messageBytes, toolsBytes, images: urls, experts, ...fields } = header;
  const { base: _base, messagesKeep: _keep, ...recorded } = fields;
  const { samplingAsked, toolChoice, parallelToolCalls, sampling, constraint, adjusted, ...head } = recorded;
  const asked = { samplingAsked, toolChoice, parallelToolCalls, sampling, constraint, adjusted };
  const ownTexts = messageBytes.map((bytes) => takeText(reader, bytes));
  const toolsText = toolsBytes === null ? base?.request.toolsText : takeText(reader, toolsBytes);
  if (toolsText === undefined) throw corrupt('uses the tools of a base that it does not name');
  const images: ImageUrls = new Map(urls.map(({ reference, bytes }) => [reference, takeText(reader, bytes)]));
  const promptIds = new Int32Array(promptKeep + promptTail);
  if (base !== null) copyLeading(base, promptIds, promptKeep);
  promptIds.set(new Int32Array(takeNumbers(reader, promptTail)), promptKeep);
  const responseIds = new Int32Array(takeNumbers(reader, responseLength));
  const responseLogprobs = new Float32Array(takeNumbers(reader, responseLength));
  const routedExperts = experts && { ...expertsOf(experts), data: Buffer.from(take(reader, experts.bytes)) };
  if (reader.at !== record.length) throw corrupt('has bytes after its end');
  const request = { ...conversationOf(header, base, ownTexts, toolsText), images, ...asked };
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
 * Returns the session and the attempt that a record's completion belongs to. Reads only the header; throws as {@link decodeCompletion} does
 * for a damaged header.
 */
export function attemptOf(record: Buffer): { readonly sessionId: string; readonly attempt: number } {
  const { sessionId, attempt } = readHeader(record).header;
  return { sessionId, attempt };
}

/**
 * Returns the completion of `earlier` whose prompt followed by its response shares the longest prefix with the prompt of `completion`;
 * `null` when no completion shares a single id. Only the latest {@link BASE_CANDIDATES} are considered. A candidate is skipped after the
 * comparison of one id when it cannot share more ids than the best candidate so far. A session in which each call continues the previous
 * one therefore costs one comparison of whole prompts per call.
 */
export function chooseBase(completion: Completion, earlier: readonly Completion[]): Completion | null {
  let best: Completion | null = null;
  let longest = 0;
  const oldest = Math.max(0, earlier.length - BASE_CANDIDATES);
  const { length } = completion.promptIds;
  for (let i = earlier.length - 1; i >= oldest && longest < length; i--) {
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

/** Returns the length of the longest common prefix of the prompt ids of `completion` and the base's prompt ids followed by its response ids. */
export function sharedIds(completion: Completion, base: Completion): number {
  const ids = completion.promptIds;
  const { promptIds, responseIds } = base;
  const inPrompt = sharedLength(ids, 0, ids.length, promptIds, 0, promptIds.length);
  if (inPrompt < promptIds.length) return inPrompt;
  return inPrompt + sharedLength(ids, inPrompt, ids.length, responseIds, 0, responseIds.length);
}

/** Returns how many leading messages of the two completions' requests are equal. */
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

/** Joins the prompt ids and the response ids of `base`, and copies the first `keep` of the joined ids to the start of `target`. */
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

/** Reads `count` numbers of four bytes each. Returns an aligned copy in the byte order of this machine. */
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
