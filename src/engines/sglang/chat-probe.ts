import type { FloeError } from '../../core/errors.ts';
import { samplingSchema } from '../../schema/index.ts';
import type { GenerateRequest } from '../engine.ts';
import type { EngineServer } from '../engine-server.ts';
import { toldSomething } from '../http.ts';
import { IdScanner } from '../id-scan.ts';
import { parseChatReply, promptKey } from './chat-reply.ts';
import { parseNativeReply } from './native-reply.ts';
import { chatBody, type IdFlags, nativeBody } from './request.ts';
import { ChatStreamReader } from './stream.ts';

/** How chat completions tell the ids that were sampled, oldest first. */
export type IdAge = 'meta_info' | 'token_ids' | 'sglext' | 'stream_ids';

export type ChatFindings = {
  readonly age: IdAge;
  /** What a call that comes whole is asked with. */
  readonly whole: IdFlags;
  /** The same for one that is streamed; null: its streams are not exact, or do not tell the weights although whole replies do. */
  readonly streamed: IdFlags | null;
  readonly inputIds: boolean;
  readonly versionSpans: boolean;
};

const NO_ENDS = { stop: [], closeIds: [] };
const NONE: IdFlags = { metaInfo: false, tokenIds: false, promptIds: false, sglext: false };

/** Newest first. A server passes over flags that it does not know, or refuses them all. */
const WHOLE: readonly (readonly [IdAge, IdFlags])[] = [
  ['token_ids', { ...NONE, metaInfo: true, tokenIds: true }],
  ['meta_info', { ...NONE, metaInfo: true, promptIds: true }],
  ['sglext', { ...NONE, sglext: true }],
];

/** The tokens of a probe: two, so that what a stream says of the last is not all that there is. */
const PROBE_TOKENS = 2;

/** A call with nothing to it, in nobody's name. */
export function probeRequest(over: Partial<GenerateRequest>): GenerateRequest {
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
    begun: null,
    cacheSalt: null,
    ...over,
  };
}

/**
 * Finds out by calls of two tokens where chat completions put ids, whether their streams have all of them, and whether they take a
 * prompt as ids. `prompt`: ids of another conversation than the probe's; null: none are known. Rejects with `engine_error` when no ids are told.
 */
export async function probeChat(
  server: EngineServer,
  model: string,
  prompt: Int32Array | null,
  streams: boolean,
): Promise<ChatFindings> {
  const scanner = new IdScanner();
  const plain = probeRequest({});
  const found = await firstWhole(server, model, plain, scanner);
  const streamed = streams ? await probeStreams(server, model, plain, found, scanner) : null;
  return {
    age: streamed?.age ?? found.age,
    whole: found.flags,
    streamed: streamed?.flags ?? null,
    inputIds: prompt !== null && (await takesInputIds(server, model, prompt, found.flags, scanner)),
    versionSpans: found.versionSpans,
  };
}

async function firstWhole(
  server: EngineServer,
  model: string,
  request: GenerateRequest,
  scanner: IdScanner,
): Promise<{ age: IdAge; flags: IdFlags; versionSpans: boolean; first: number }> {
  let reason: FloeError | null = null;
  for (const [age, flags] of WHOLE) {
    try {
      const reply = await askWhole(server, model, request, flags, scanner);
      return { age, flags, versionSpans: reply.versionSpans !== null, first: reply.responseIds[0] as number };
    } catch (error) {
      reason = reasonOf(error);
    }
  }
  throw server.fail('engine_error', `its chat completions tell no token ids: ${reason?.message ?? ''}`);
}

async function askWhole(
  server: EngineServer,
  model: string,
  request: GenerateRequest,
  flags: IdFlags,
  scanner: IdScanner,
): Promise<ReturnType<typeof parseChatReply>> {
  const body = chatBody(model, request, { flags, stream: false, maxTokens: request.maxTokens, experts: false });
  const reply = await server.post('/v1/chat/completions', body, null, deadline());
  return parseChatReply(await reply.read(), request, scanner, { key: promptKey(flags), ends: NO_ENDS, model });
}

/**
 * The streams have to be exact when a bound ends the reply and when a token does: some releases have no log-probability for a last
 * token that shows no text. And they have to tell the weights where whole replies do. `whole.first`: the token that the reply begins
 * with, which is made to end the second.
 */
async function probeStreams(
  server: EngineServer,
  model: string,
  request: GenerateRequest,
  whole: { readonly first: number; readonly versionSpans: boolean },
  scanner: IdScanner,
): Promise<{ age: IdAge; flags: IdFlags } | null> {
  const kinds: readonly (readonly [IdAge, IdFlags])[] = [
    ['stream_ids', { ...NONE, tokenIds: true }],
    ['sglext', { ...NONE, sglext: true }],
  ];
  for (const [age, flags] of kinds) {
    try {
      for (const stopIds of [[], [whole.first]]) {
        const options = { flags, stream: true, maxTokens: request.maxTokens, experts: false, stopIds };
        const body = chatBody(model, request, options);
        const reply = await server.post('/v1/chat/completions', body, null, deadline());
        const reader = new ChatStreamReader(request, scanner, DEAF, { key: promptKey(flags), ends: NO_ENDS, model });
        await reply.each((bytes) => reader.push(bytes));
        const { versionSpans } = reader.reply();
        if (whole.versionSpans && versionSpans === null) return null;
      }
      return { age, flags };
    } catch (error) {
      reasonOf(error);
    }
  }
  return null;
}

const DEAF = { started: () => {}, delta: () => {} };

async function takesInputIds(
  server: EngineServer,
  model: string,
  ids: Int32Array,
  flags: IdFlags,
  scanner: IdScanner,
): Promise<boolean> {
  try {
    const request = probeRequest({ prompt: { ids, json: Buffer.from(ids.join(',')) } });
    const { promptIds } = await askWhole(server, model, request, flags, scanner);
    return promptIds.length === ids.length && promptIds.every((id, index) => ids[index] === id);
  } catch (error) {
    reasonOf(error);
    return false;
  }
}

export type NativeFindings = { readonly seed: boolean; readonly versionSpans: boolean };

/** Finds out whether `/generate` tells ids, and whether it knows seeds. Null: it is not there, or tells none. */
export async function probeNative(server: EngineServer, ids: Int32Array): Promise<NativeFindings | null> {
  const scanner = new IdScanner();
  const request = probeRequest({ prompt: { ids, json: Buffer.from(ids.join(',')) }, seed: 1 });
  for (const seed of [true, false]) {
    try {
      const body = nativeBody(request, { maxTokens: request.maxTokens, seed, experts: false });
      const reply = await server.post('/generate', body, null, deadline());
      const parsed = parseNativeReply(await reply.read(), { ...request, sent: ids }, scanner, NO_ENDS);
      return { seed, versionSpans: parsed.versionSpans !== null };
    } catch (error) {
      reasonOf(error);
    }
  }
  return null;
}

/** `seen`: keeps what it does not name out of the cache. `taken`: no call shows whether it does. */
export type SaltFinding = 'seen' | 'taken' | 'refused';

/** Salts one conversation by two names and by the first again, and looks at how many tokens each call finds in the cache. */
export async function probeSalt(
  server: EngineServer,
  model: string,
  flags: IdFlags,
  salts: readonly [string, string],
): Promise<SaltFinding> {
  const scanner = new IdScanner();
  const messageTexts = [JSON.stringify({ role: 'user', content: 'Say yes. '.repeat(CACHED_WORDS) })];
  const cached: number[] = [];
  for (const cacheSalt of [...salts, salts[0]]) {
    try {
      const reply = await askWhole(server, model, probeRequest({ messageTexts, cacheSalt }), flags, scanner);
      cached.push(reply.usage.cached_tokens ?? 0);
    } catch (error) {
      reasonOf(error);
      return 'refused';
    }
  }
  const [, other = 0, same = 0] = cached;
  return same > other ? 'seen' : 'taken';
}

/** Makes a conversation longer than the pages of any cache. */
const CACHED_WORDS = 100;

/** A server that refuses or answers otherwise has told something; one that cannot be reached has not. */
function reasonOf(error: unknown): FloeError {
  if (toldSomething(error)) return error;
  throw error;
}

/** As for every look-up: a probe of two tokens that takes longer is none. */
const PROBE_TIMEOUT_MS = 10_000;

function deadline(): AbortSignal {
  return AbortSignal.timeout(PROBE_TIMEOUT_MS);
}
