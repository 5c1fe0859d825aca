import { endianness } from 'node:os';
import { z } from 'zod';
import { FloeError } from '../core/errors.ts';
import { parseAs, parseJson } from '../core/parse.ts';
import type { RoutedExperts } from '../core/reply.ts';
import { chatMessageSchema, chatToolSchema } from '../schema/index.ts';
import { type Completion, type CompletionRequest, completionHeadSchema, requestSamplingSchema } from './completion.ts';
import { bytesOf, sharedLength } from './sequence.ts';

/**
 * One completion in binary, little-endian:
 *
 *   "FLC3" | byte count of the header | header JSON | texts | prompt ids | response ids | logprobs | routed experts
 *
 * `texts` are the JSON texts of the messages and then of the tools, without separators; the header holds their sizes and all
 * counts. Parts that the completion shares with an earlier one of its session, its base, are left out: leading ids of the
 * prompt, leading messages, the tools. A record has no checksum: the journal's frame around it has one.
 */
const MAGIC = Buffer.from('FLC3');
const HEADER_SIZE_AT = 4;
const HEADER_AT = 8;
const BYTES_PER_NUMBER = 4;

/** More than the agents that run concurrently in one session; an earlier base would only save bytes. */
const BASE_CANDIDATES = 16;

const count = z.int().min(0);

const expertsSchema = z.object({
  dtype: z.enum(['uint8', 'uint16', 'int32']),
  shape: z.tuple([count, count, count]),
  start: count,
  bytes: count,
});

const layoutSchema = z.object({
  /** Completion id; `null` when the record is complete without another one. */
  base: z.string().nullable(),
  /** How many leading ids of the base's prompt and response the prompt repeats. */
  promptKeep: count,
  promptTail: count,
  responseLength: count,
  messagesKeep: count,
  messageBytes: z.array(count),
  /** `null` when the tools are those of the base. */
  toolsBytes: count.nullable(),
  experts: expertsSchema.nullable(),
});

const headerSchema = completionHeadSchema.extend(requestSamplingSchema.shape).extend(layoutSchema.shape);
type Header = z.infer<typeof headerSchema>;

/** The decoder needs `base`, which {@link chooseBase} picks; with `null` the record is complete by itself. */
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
 * The inverse of {@link encodeCompletion}; the result shares no memory with `record`. `lookupBase` finds an earlier completion by
 * id. Throws `corrupt_record` when a size is wrong or the base is missing, and `malformed_json` or `schema_violation` when the
 * header is not one of this version.
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

/** The attempt that a record's completion belongs to. Throws as {@link decodeCompletion} does. */
export function attemptOf(record: Buffer): { readonly sessionId: string; readonly attempt: number } {
  const { sessionId, attempt } = readHeader(record).header;
  return { sessionId, attempt };
}

/**
 * The completion of `earlier` whose prompt and response share the longest prefix with the prompt of `completion`; `null` when
 * none shares a single id. Considers the latest {@link BASE_CANDIDATES} and skips any that is shorter than the best prefix so far
 * or differs at its end, so that a session that continues turn by turn costs one comparison of prompts.
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

/** The id at `index` of the prompt followed by the response; `undefined` beyond their end. */
function idAt({ promptIds, responseIds }: Completion, index: number): number | undefined {
  return index < promptIds.length ? promptIds[index] : responseIds[index - promptIds.length];
}

/** The number of leading prompt ids that equal those of the base's prompt followed by its response. */
export function sharedIds(completion: Completion, base: Completion): number {
  const ids = completion.promptIds;
  const { promptIds, responseIds } = base;
  const inPrompt = sharedLength(ids, 0, ids.length, promptIds, 0, promptIds.length);
  if (inPrompt < promptIds.length) return inPrompt;
  return inPrompt + sharedLength(ids, inPrompt, ids.length, responseIds, 0, responseIds.length);
}

/** The number of leading messages that two requests share. */
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

/** Copies the first `keep` ids of the base's prompt followed by its response. */
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

/** An aligned copy of `count` four-byte numbers in the machine's byte order. */
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
