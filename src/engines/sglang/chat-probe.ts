import type { FloeError } from '../../core/errors.ts';
import { samplingSchema } from '../../schema/index.ts';
import { IdScanner } from '../chat/reply-scan.ts';
import type { GenerateRequest, ReplyListener } from '../engine.ts';
import { type EngineServer, hasAnswered } from '../engine-server.ts';
import { parseChatReply, promptKeyOf } from './chat-reply.ts';
import { type ChatReply, parseNativeReply } from './reply.ts';
import { chatBody, type IdFlags, nativeBody } from './request.ts';
import { ChatStreamReader } from './stream.ts';

/**
 * How chat completions report the sampled ids, oldest release first. The oldest supported releases are those whose chat completions
 * know `return_meta_info`; a server without it reports no token ids and is refused.
 */
export type IdSource = 'meta_info' | 'token_ids' | 'sglext' | 'stream_ids';

/** What the probes of chat completions show. */
export type ChatFeatures = {
  readonly idSource: IdSource;
  /** The flags of a call that is not streamed. */
  readonly flags: IdFlags;
  /**
   * The flags of a streamed call; `null` when streams are not exact, or do not report the weights' versions although other replies
   * do.
   */
  readonly streamFlags: IdFlags | null;
  readonly inputIds: boolean;
  readonly versionSpans: boolean;
};

const NO_ENDS = { stop: [], closeIds: [] };
const NO_FLAGS: IdFlags = { metaInfo: false, tokenIds: false, promptIds: false, sglext: false };

/** Newest first. A server ignores flags that it does not know, or refuses the request. */
const ID_SOURCES: readonly (readonly [IdSource, IdFlags])[] = [
  ['token_ids', { ...NO_FLAGS, metaInfo: true, tokenIds: true }],
  ['meta_info', { ...NO_FLAGS, metaInfo: true, promptIds: true }],
  ['sglext', { ...NO_FLAGS, sglext: true }],
];

const STREAM_ID_SOURCES: readonly (readonly [IdSource, IdFlags])[] = [
  ['stream_ids', { ...NO_FLAGS, tokenIds: true }],
  ['sglext', { ...NO_FLAGS, sglext: true }],
];

/** Two tokens, so that a stream has more than the tokens of its last chunk. */
const PROBE_TOKENS = 2;

/** Time limit of one call of {@link PROBE_TOKENS}; it equals that of a control request. */
const PROBE_TIMEOUT_MS = 10_000;

/** Words of a conversation that is longer than the pages of any prefix cache. */
const CACHED_WORDS = 100;

const NO_LISTENER: ReplyListener = { started: () => {}, delta: () => {} };

/** A minimal call that belongs to no session. */
function probeRequest(over: Partial<GenerateRequest>): GenerateRequest {
  return {
    completionId: '',
    sessionId: 'floe-probe',
    pool: '',
    messageTexts: ['{"role":"user","content":"Say yes."}'],
    tools: [],
    toolsText: '[]',
    toolChoice: null,
    parallelToolCalls: null,
    sampling: samplingSchema.parse({ temperature: 0 }),
    maxTokens: PROBE_TOKENS,
    stop: [],
    responseFormat: null,
    seed: null,
    prompt: null,
    resumeFrom: null,
    cacheSalt: null,
    ...over,
  };
}

/**
 * Determines, by calls of two tokens, which fields of chat completions have the ids, whether their streams are complete, and whether
 * they accept a prompt of ids. `prompt` are the ids of another conversation than the probe's; `null` when none are known. Rejects
 * with `engine_error` when no ids are reported.
 */
export async function probeChat(
  server: EngineServer,
  model: string,
  prompt: Int32Array | null,
  isStreamingWanted: boolean,
): Promise<ChatFeatures> {
  const scanner = new IdScanner();
  const request = probeRequest({});
  const plain = await findIdSource(server, model, request, scanner);
  const streamed = isStreamingWanted ? await findStreamIdSource(server, model, request, plain, scanner) : null;
  return {
    idSource: streamed?.idSource ?? plain.idSource,
    flags: plain.flags,
    streamFlags: streamed?.flags ?? null,
    inputIds: prompt !== null && (await acceptsInputIds(server, model, prompt, plain.flags, scanner)),
    versionSpans: plain.versionSpans,
  };
}

type FoundSource = { readonly idSource: IdSource; readonly flags: IdFlags };
type PlainSource = FoundSource & {
  readonly versionSpans: boolean;
  /** The first token of the reply. */
  readonly firstId: number;
};

async function findIdSource(
  server: EngineServer,
  model: string,
  request: GenerateRequest,
  scanner: IdScanner,
): Promise<PlainSource> {
  let lastError: FloeError | null = null;
  for (const [idSource, flags] of ID_SOURCES) {
    try {
      const reply = await chatCompletion(server, model, request, flags, scanner);
      const firstId = reply.responseIds[0] as number;
      return { idSource, flags, versionSpans: reply.versionSpans !== null, firstId };
    } catch (error) {
      lastError = answeredError(error);
    }
  }
  throw server.error('engine_error', `its chat completions report no token ids: ${lastError?.message ?? ''}`);
}

function chatCompletion(
  server: EngineServer,
  model: string,
  request: GenerateRequest,
  flags: IdFlags,
  scanner: IdScanner,
): Promise<ChatReply> {
  const body = chatBody(model, request, { flags, stream: false, maxTokens: request.maxTokens, experts: false });
  return server.withDeadline(PROBE_TIMEOUT_MS, async (signal) => {
    const reply = await server.post('/v1/chat/completions', body, null, signal);
    const options = { promptKey: promptKeyOf(flags), ends: NO_ENDS, model };
    return parseChatReply(await reply.read(), request, scanner, options);
  });
}

/**
 * Streams must be exact both when the bound ends the reply and when a stop token does: some releases have no log-probability for a
 * last token without text. They must also report the weights' versions if other replies do. For the second stream, the first token
 * of the plain reply is made a stop token. `null` when no stream meets this.
 */
async function findStreamIdSource(
  server: EngineServer,
  model: string,
  request: GenerateRequest,
  plain: PlainSource,
  scanner: IdScanner,
): Promise<FoundSource | null> {
  for (const [idSource, flags] of STREAM_ID_SOURCES) {
    try {
      for (const stopIds of [[], [plain.firstId]]) {
        const reply = await streamedCompletion(server, model, request, flags, stopIds, scanner);
        if (plain.versionSpans && reply.versionSpans === null) return null;
      }
      return { idSource, flags };
    } catch (error) {
      answeredError(error);
    }
  }
  return null;
}

function streamedCompletion(
  server: EngineServer,
  model: string,
  request: GenerateRequest,
  flags: IdFlags,
  stopIds: readonly number[],
  scanner: IdScanner,
): Promise<ChatReply> {
  const options = { flags, stream: true, maxTokens: request.maxTokens, experts: false, stopIds };
  const body = chatBody(model, request, options);
  return server.withDeadline(PROBE_TIMEOUT_MS, async (signal) => {
    const reply = await server.post('/v1/chat/completions', body, null, signal);
    const reader = new ChatStreamReader(request, scanner, NO_LISTENER, {
      promptKey: promptKeyOf(flags),
      ends: NO_ENDS,
      model,
    });
    await reply.each((bytes) => reader.push(bytes));
    return reader.reply();
  });
}

async function acceptsInputIds(
  server: EngineServer,
  model: string,
  ids: Int32Array,
  flags: IdFlags,
  scanner: IdScanner,
): Promise<boolean> {
  try {
    const request = probeRequest({ prompt: { ids, json: Buffer.from(ids.join(',')) } });
    const { promptIds } = await chatCompletion(server, model, request, flags, scanner);
    return promptIds.length === ids.length && promptIds.every((id, index) => ids[index] === id);
  } catch (error) {
    answeredError(error);
    return false;
  }
}

export type NativeFeatures = { readonly seed: boolean; readonly versionSpans: boolean };

/** Determines whether `/generate` reports ids, and whether it supports seeds. `null` when it does not exist or reports none. */
export async function probeNative(server: EngineServer, ids: Int32Array): Promise<NativeFeatures | null> {
  const scanner = new IdScanner();
  const request = probeRequest({ prompt: { ids, json: Buffer.from(ids.join(',')) }, seed: 1 });
  for (const seed of [true, false]) {
    try {
      const body = nativeBody(request, { maxTokens: request.maxTokens, seed, experts: false });
      const parsed = await server.withDeadline(PROBE_TIMEOUT_MS, async (signal) => {
        const reply = await server.post('/generate', body, null, signal);
        return parseNativeReply(await reply.read(), { ...request, sent: ids }, scanner, NO_ENDS);
      });
      return { seed, versionSpans: parsed.versionSpans !== null };
    } catch (error) {
      answeredError(error);
    }
  }
  return null;
}

/**
 * `honoured`: a salted conversation is cached only for the same salt. `accepted`: the field is accepted, but no call shows an effect.
 * `refused`: the server refuses the field.
 */
export type SaltSupport = 'honoured' | 'accepted' | 'refused';

/** Sends one conversation with two salts and with the first one once more, and compares the cached tokens of the calls. */
export async function probeSalt(
  server: EngineServer,
  model: string,
  flags: IdFlags,
  salts: readonly [string, string],
): Promise<SaltSupport> {
  const scanner = new IdScanner();
  const messageTexts = [JSON.stringify({ role: 'user', content: 'Say yes. '.repeat(CACHED_WORDS) })];
  const cached: number[] = [];
  for (const cacheSalt of [...salts, salts[0]]) {
    try {
      const reply = await chatCompletion(server, model, probeRequest({ messageTexts, cacheSalt }), flags, scanner);
      cached.push(reply.usage.cached_tokens ?? 0);
    } catch (error) {
      answeredError(error);
      return 'refused';
    }
  }
  const [, otherSalt = 0, sameSalt = 0] = cached;
  return sameSalt > otherSalt ? 'honoured' : 'accepted';
}

/** The error of a call that the server answered, which shows that a feature is missing. Throws any other error. */
function answeredError(error: unknown): FloeError {
  if (hasAnswered(error)) return error;
  throw error;
}
