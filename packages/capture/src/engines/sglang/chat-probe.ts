import type { FloeError } from '@floe-rl/core';
import { samplingSchema } from '@floe-rl/core/schema';
import { IdScanner } from '../chat/reply-scan.ts';
import type { GenerateRequest, ReplyListener } from '../engine.ts';
import { type EngineServer, hasAnswered } from '../engine-server.ts';
import { firstTopLogprobs, PROBE_TOP_LOGPROBS, type TopLogprobs, topLogprobsSchema } from '../logprobs-probe.ts';
import { parseChatReply, promptKeyOf } from './chat-reply.ts';
import { type ChatReply, parseNativeReply } from './reply.ts';
import { chatBody, type IdFlags, nativeBody } from './request.ts';
import { chatStream } from './stream.ts';

/**
 * The field in which chat completions report the sampled token ids. The values are in the order in which SGLang's releases introduced the
 * fields. A server that does not support at least the oldest field, `meta_info`, reports no token ids and is refused.
 */
export type IdSource = 'meta_info' | 'token_ids' | 'sglext' | 'stream_ids';

/** Features of the server's chat completions that the probe calls have detected. */
export type ChatFeatures = {
  readonly idSource: IdSource;
  /** Flags that make a reply report token ids, for calls that are not streamed. */
  readonly flags: IdFlags;
  /**
   * Flags that make a reply report token ids, for streamed calls. `null` when replies are not streamed: streaming is switched off, or
   * streams lack ids, log-probabilities or the policy versions that other replies report.
   */
  readonly streamFlags: IdFlags | null;
  readonly inputIds: boolean;
  readonly versionSpans: boolean;
};

const NO_ENDS = { stop: [], closeIds: [] };
const NO_FLAGS: IdFlags = { metaInfo: false, tokenIds: false, promptIds: false, sglext: false };

/** The combinations of request flags to try, in this order. A server either ignores flags that it does not know, or refuses the request. */
const ID_SOURCES: readonly (readonly [IdSource, IdFlags])[] = [
  ['token_ids', { ...NO_FLAGS, metaInfo: true, tokenIds: true }],
  ['meta_info', { ...NO_FLAGS, metaInfo: true, promptIds: true }],
  ['sglext', { ...NO_FLAGS, sglext: true }],
];

const STREAM_ID_SOURCES: readonly (readonly [IdSource, IdFlags])[] = [
  ['stream_ids', { ...NO_FLAGS, tokenIds: true }],
  ['sglext', { ...NO_FLAGS, sglext: true }],
];

/** Number of tokens that a probe call samples. Two are needed so that a stream has a token before its last chunk. */
const PROBE_TOKENS = 2;

/** Time limit of one probe call, which samples {@link PROBE_TOKENS} tokens. It equals the time limit of a control request. */
const PROBE_TIMEOUT_MS = 10_000;

/**
 * Number of repetitions of a sentence in the conversation that tests the cache salt. The repetitions make the conversation longer than one
 * page of any prefix cache.
 */
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
    policyVersion: null,
    ...over,
  };
}

/**
 * Determines, with calls that sample two tokens, which fields of chat completions contain the token ids, whether streams are complete, and
 * whether a prompt of token ids is accepted. `prompt` is the rendering of a conversation other than the one in the probe calls; `null` when
 * no rendering is available. Rejects with `engine_error` when no ids are reported.
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
  /** Id of the first token of the reply to the probe call. */
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
 * Finds request flags that make a stream contain all token ids and log-probabilities; `null` when no flags achieve it. Each combination of
 * flags is tried with two replies: the token limit ends the first, and a stop token ends the second. The second is needed because some
 * releases report no log-probability for a last token without text. The stop token is the first token of the reply in `plain`. If the reply in
 * `plain` reports policy versions, the streams must report them as well.
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
    const reader = chatStream(request, scanner, NO_LISTENER, {
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
 * Determines whether `/generate` reports token ids, and whether it supports seeds. Resolves with `null` when the endpoint does not exist or
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
 * Whether the server separates its prefix cache by salt. `honoured`: a cached prefix is reused only with the same salt. `accepted`: the field
 * is accepted, but no call shows an effect. `refused`: the server refuses the field.
 */
export type SaltSupport = 'honoured' | 'accepted' | 'refused';

/**
 * Determines the {@link SaltSupport}: sends one conversation with two salts and once more with the first salt, and compares the numbers of
 * cached tokens.
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
  for (const policyVersion of [...salts, salts[0]]) {
    try {
      const reply = await chatCompletion(server, model, probeRequest({ messageTexts, policyVersion }), flags, scanner);
      cached.push(reply.usage.cached_tokens ?? 0);
    } catch (error) {
      answeredError(error);
      return 'refused';
    }
  }
  const [, otherSalt = 0, sameSalt = 0] = cached;
  return sameSalt > otherSalt ? 'honoured' : 'accepted';
}

/** Samples one token at `temperature` and returns the log-probabilities of the likeliest tokens. */
export function topLogprobsAt(
  server: EngineServer,
  model: string,
  flags: IdFlags,
  temperature: number,
): Promise<TopLogprobs> {
  const request = probeRequest({ sampling: samplingSchema.parse({ temperature }) });
  const options = { flags, stream: false, maxTokens: 1, experts: false, topLogprobs: PROBE_TOP_LOGPROBS };
  const body = chatBody(model, request, options);
  return server.withDeadline(PROBE_TIMEOUT_MS, async (signal) =>
    firstTopLogprobs(await server.call('/v1/chat/completions', body, null, topLogprobsSchema, signal)),
  );
}

/**
 * Returns the error when it is the server's answer to a call, which shows that the server lacks a feature. Rethrows any other error, such
 * as a lost connection.
 */
function answeredError(error: unknown): FloeError {
  if (hasAnswered(error)) return error;
  throw error;
}
