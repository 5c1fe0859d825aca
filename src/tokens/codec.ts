import { endianness } from 'node:os';
import { crc32 } from 'node:zlib';
import { z } from 'zod';
import { FloeError } from '../core/errors.ts';
import { parseAs, parseJson } from '../core/parse.ts';
import type { RoutedExperts } from '../core/routed-experts.ts';
import {
  assistantMessageSchema,
  callKindSchema,
  captureSchema,
  chatMessageSchema,
  chatToolSchema,
  dialectNameSchema,
  finishReasonSchema,
  samplingAskedSchema,
  samplingSchema,
  stopCauseSchema,
  usageSchema,
  versionSpanSchema,
} from '../schema/index.ts';
import type { Completion, CompletionRequest } from './completion.ts';
import { bytesOf, sharedLength } from './sequence.ts';

/**
 * One completion in binary, little-endian:
 *
 *   "FLC2" | CRC32 of the rest | bytes of header | header JSON | texts | prompt ids | response ids | logprobs
 *
 * `texts` are the JSON texts of the messages and then of the tools, one after the other; the header holds their sizes
 * and all counts. What the completion shares with an earlier one of its session, its base, is left out: leading ids of
 * the prompt, leading messages, the tools. Routed experts, where there are any, stand behind the logprobs.
 */
const MAGIC = Buffer.from('FLC2');
const CRC_AT = 4;
const HEADER_SIZE_AT = 8;
const HEADER_AT = 12;
const BYTES_PER_NUMBER = 4;

/** More agents than run side by side in one session; a base further back would only save bytes. */
const BASE_CANDIDATES = 16;

const count = z.int().min(0);

const expertsSchema = z.object({
  dtype: z.enum(['uint8', 'uint16', 'int32']),
  shape: z.tuple([count, count, count]),
  start: count,
  bytes: count,
});

const headerSchema = z.object({
  base: z.string().nullable(),
  promptKeep: count,
  promptTail: count,
  responseLength: count,
  messagesKeep: count,
  messageBytes: z.array(count),
  /** null: the same tools as those of the base. */
  toolsBytes: count.nullable(),
  completionId: z.string(),
  sessionId: z.string(),
  attempt: z.int(),
  index: z.int(),
  timestampMs: z.number(),
  dialect: dialectNameSchema,
  callKind: callKindSchema,
  thread: z.string(),
  samplingAsked: samplingAskedSchema,
  sampling: samplingSchema,
  adjusted: z.array(z.string()),
  versionSpans: z.array(versionSpanSchema),
  message: assistantMessageSchema,
  capture: captureSchema,
  engineCallIds: z.array(z.string()),
  /** Their bytes stand behind the logprobs. */
  experts: expertsSchema.nullable(),
  finishReason: finishReasonSchema,
  stop: stopCauseSchema.nullable(),
  engineId: z.string(),
  model: z.string(),
  usage: usageSchema,
  engineMs: z.number(),
  totalMs: z.number(),
  abandoned: z.boolean(),
  auxiliary: z.boolean(),
  undelivered: z.boolean(),
});
type Header = z.infer<typeof headerSchema>;

/** `base` must be known to whoever decodes; null keeps the record complete in itself. See {@link chooseBase}. */
export function encodeCompletion(completion: Completion, base: Completion | null): Buffer {
  const { request, promptIds, responseIds, responseLogprobs, routedExperts, ...rest } = completion;
  const promptKeep = base === null ? 0 : sharedIds(completion, base);
  const messagesKeep = base === null ? 0 : sharedMessages(completion, base);
  const sameTools = base !== null && base.request.toolsText === request.toolsText;
  const texts = request.messageTexts.slice(messagesKeep).map((text) => Buffer.from(text));
  const tools = sameTools ? null : Buffer.from(request.toolsText);
  const { samplingAsked, sampling, adjusted } = request;
  const facts: Header = {
    ...rest,
    versionSpans: [...rest.versionSpans],
    engineCallIds: [...rest.engineCallIds],
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
  const header = Buffer.from(JSON.stringify(facts));
  const head = Buffer.allocUnsafe(HEADER_AT);
  MAGIC.copy(head);
  head.writeUInt32LE(header.length, HEADER_SIZE_AT);
  const record = Buffer.concat([
    head,
    header,
    ...texts,
    tools ?? Buffer.alloc(0),
    littleEndian(promptIds.subarray(promptKeep)),
    littleEndian(responseIds),
    littleEndian(responseLogprobs),
    routedExperts?.data ?? Buffer.alloc(0),
  ]);
  record.writeUInt32LE(crc32(record.subarray(HEADER_SIZE_AT)), CRC_AT);
  return record;
}

/**
 * The inverse of {@link encodeCompletion}; nothing of `record` is kept. `lookupBase` finds an earlier completion by id.
 * Throws `corrupt_record` when a checksum or size is wrong or the base is not there, and `malformed_json` or
 * `schema_violation` for a whole record whose fields are not those of this version.
 */
export function decodeCompletion(
  record: Buffer,
  lookupBase: (completionId: string) => Completion | undefined,
): Completion {
  const { header, bodyAt } = readHeader(record);
  const base = baseOf(header, lookupBase);
  const reader = { record, at: bodyAt };
  const { promptKeep, promptTail, responseLength } = header;
  const ownTexts = header.messageBytes.map((bytes) => takeText(reader, bytes));
  const toolsText = header.toolsBytes === null ? base?.request.toolsText : takeText(reader, header.toolsBytes);
  if (toolsText === undefined) throw corrupt('takes its tools from a base that it does not name');
  const promptIds = new Int32Array(promptKeep + promptTail);
  if (base !== null) copyLeading(base, promptIds, promptKeep);
  promptIds.set(new Int32Array(takeNumbers(reader, promptTail)), promptKeep);
  const responseIds = new Int32Array(takeNumbers(reader, responseLength));
  const responseLogprobs = new Float32Array(takeNumbers(reader, responseLength));
  const routedExperts = header.experts && {
    ...expertsOf(header.experts),
    data: Buffer.from(take(reader, header.experts.bytes)),
  };
  if (reader.at !== record.length) throw corrupt('has bytes after its end');
  return {
    completionId: header.completionId,
    sessionId: header.sessionId,
    attempt: header.attempt,
    index: header.index,
    timestampMs: header.timestampMs,
    dialect: header.dialect,
    callKind: header.callKind,
    thread: header.thread,
    request: requestOf(header, base, ownTexts, toolsText),
    capture: header.capture,
    promptIds,
    responseIds,
    responseLogprobs,
    versionSpans: header.versionSpans,
    routedExperts,
    message: header.message,
    engineCallIds: header.engineCallIds,
    finishReason: header.finishReason,
    stop: header.stop,
    engineId: header.engineId,
    model: header.model,
    usage: header.usage,
    engineMs: header.engineMs,
    totalMs: header.totalMs,
    abandoned: header.abandoned,
    auxiliary: header.auxiliary,
    undelivered: header.undelivered,
  };
}

type ExpertsHead = Omit<RoutedExperts, 'data'>;

function expertsOf({
  dtype,
  shape,
  start,
}: ExpertsHead): Pick<z.infer<typeof expertsSchema>, 'dtype' | 'shape' | 'start'> {
  return { dtype, shape: [...shape], start };
}

/** The completion id of the base that a record needs, or null. Throws `corrupt_record` as {@link decodeCompletion} does. */
export function baseIdOf(record: Buffer): string | null {
  return readHeader(record).header.base;
}

/** Whose completion a record is. Throws `corrupt_record` as {@link decodeCompletion} does. */
export function attemptOf(record: Buffer): { readonly sessionId: string; readonly attempt: number } {
  const { sessionId, attempt } = readHeader(record).header;
  return { sessionId, attempt };
}

/**
 * Of `earlier`, the completion whose prompt and response share the longest prefix with the prompt; null when none
 * shares anything. Looks at the latest {@link BASE_CANDIDATES} and skips all that are too short to win or differ where they
 * would have to agree, so in a session that goes on turn by turn it compares one prompt.
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

/** Of prompt and response, one after the other. */
function idAt({ promptIds, responseIds }: Completion, index: number): number | undefined {
  return index < promptIds.length ? promptIds[index] : responseIds[index - promptIds.length];
}

/** How many leading prompt ids are those of the base's prompt and response. */
export function sharedIds(completion: Completion, base: Completion): number {
  const ids = completion.promptIds;
  const { promptIds, responseIds } = base;
  const inPrompt = sharedLength(ids, 0, ids.length, promptIds, 0, promptIds.length);
  if (inPrompt < promptIds.length) return inPrompt;
  return inPrompt + sharedLength(ids, inPrompt, ids.length, responseIds, 0, responseIds.length);
}

/** How many leading messages two requests share. */
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
  if (record.readUInt32LE(CRC_AT) !== crc32(record.subarray(HEADER_SIZE_AT))) throw corrupt('fails its checksum');
  const bodyAt = HEADER_AT + record.readUInt32LE(HEADER_SIZE_AT);
  if (bodyAt > record.length) throw corrupt('is cut off in its header');
  const header = parseAs(headerSchema, parseJson(record.subarray(HEADER_AT, bodyAt)), 'completion record');
  return { header, bodyAt };
}

function baseOf(header: Header, lookupBase: (completionId: string) => Completion | undefined): Completion | null {
  if (header.base === null) {
    if (header.promptKeep > 0 || header.messagesKeep > 0) throw corrupt('keeps parts of a base that it does not name');
    return null;
  }
  const base = lookupBase(header.base);
  if (base === undefined) throw corrupt(`needs completion ${header.base}, which is not there`);
  const ids = base.promptIds.length + base.responseIds.length;
  if (header.promptKeep > ids || header.messagesKeep > base.request.messages.length) {
    throw corrupt(`keeps more of completion ${header.base} than there is`);
  }
  return base;
}

function requestOf(
  header: Header,
  base: Completion | null,
  ownTexts: readonly string[],
  toolsText: string,
): CompletionRequest {
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
    samplingAsked: header.samplingAsked,
    sampling: header.sampling,
    adjusted: header.adjusted,
  };
}

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

/** A fresh, aligned copy of `count` four-byte numbers in the machine's own order. */
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
