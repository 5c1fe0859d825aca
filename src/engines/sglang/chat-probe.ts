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
 * The field in which chat completions report the sampled ids, in the order of the SGLang releases that introduced it. The oldest
 * supported releases are those whose chat completions know `return_meta_info`; a server without this field reports no token ids and is
 * refused.
 */
export type IdSource = 'meta_info' | 'token_ids' | 'sglext' | 'stream_ids';

/** What the probe calls have shown about the server's chat completions. */
export type ChatFeatures = {
  readonly idSource: IdSource;
  /** Flags that make a reply report token ids, for calls that are not streamed. */
  readonly flags: IdFlags;
  /**
   * Flags that make a reply report token ids, for streamed calls. `null` when streams are not used: streaming was not requested, streams
   * lack ids or log-probabilities, or they do not report the weights' versions although other replies do.
   */
  readonly streamFlags: IdFlags | null;
  readonly inputIds: boolean;
  readonly versionSpans: boolean;
};

const NO_ENDS = { stop: [], closeIds: [] };
const NO_FLAGS: IdFlags = { metaInfo: false, tokenIds: false, promptIds: false, sglext: false };

/**
 * The flag combinations to try, those of the newest releases first. A server either ignores flags that it does not know, or refuses the
 * request.
 */
const ID_SOURCES: readonly (readonly [IdSource, IdFlags])[] = [
  ['token_ids', { ...NO_FLAGS, metaInfo: true, tokenIds: true }],
  ['meta_info', { ...NO_FLAGS, metaInfo: true, promptIds: true }],
  ['sglext', { ...NO_FLAGS, sglext: true }],
];

const STREAM_ID_SOURCES: readonly (readonly [IdSource, IdFlags])[] = [
  ['stream_ids', { ...NO_FLAGS, tokenIds: true }],
  ['sglext', { ...NO_FLAGS, sglext: true }],
];

/** Tokens that a probe call samples. Two are needed so that a stream has tokens before those of its last chunk. */
const PROBE_TOKENS = 2;

/** Time limit of one probe call, which samples {@link PROBE_TOKENS} tokens. It equals the time limit of a control request. */
const PROBE_TIMEOUT_MS = 10_000;

/** Repetitions in the probe conversation for the cache salt, which make it longer than one page of any prefix cache. */
const CACHED_WORDS = 100;

const NO_LISTENER: ReplyListener = { started: () => {}, delta: () => {} };

/** Makes a minimal request that belongs to no session; `over` overrides its fields. */
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
 * Determines with calls of two tokens which fields of chat completions have the ids, whether their streams are complete, and whether
 * they accept a prompt of ids. `prompt` is a rendered conversation that differs from the probe's; `null` when none is available. Rejects
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
  /** Id of the first token of the probe's reply. */
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
 * Finds flags with which streams are complete; `null` when no flags achieve it. A stream must be exact both when the token limit ends
 * the reply and when a stop token does, because some releases report no log-probability for a last token without text. It must also
 * report the weights' versions if other replies do. For the second stream, the first token of the reply that was not streamed is made a
 * stop token.
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

/**
 * Determines whether `/generate` reports ids, and whether it supports seeds. Resolves with `null` when the endpoint does not exist or
 * reports no ids.
 */
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
 * Whether the server separates its prefix cache by salt. `honoured` means that a conversation is reused only with the same salt,
 * `accepted` that the field is accepted but no call shows an effect, and `refused` that the server refuses the field.
 */
export type SaltSupport = 'honoured' | 'accepted' | 'refused';

/**
 * Determines the salt support: sends one conversation with two salts and once more with the first salt, and compares the cached tokens
 * of the calls.
 */
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

/** Returns the error of a call that the server answered, which shows that a feature is missing. Rethrows any other error. */
function answeredError(error: unknown): FloeError {
  if (hasAnswered(error)) return error;
  throw error;
}
