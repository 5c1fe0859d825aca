import { type Clock, FloeError, sleep } from '@floe-rl/core';
import type { AssistantMessage } from '@floe-rl/core/schema';
import type { StreamedReply } from '../chat/reply-beginning.ts';
import type { GenerateRequest } from '../engine.ts';
import type { EngineServer } from '../engine-server.ts';
import type { TokenRequest } from './generated.ts';
import { parseDerendered, parseDerenderedChunk, type ReplyContext } from './reply.ts';
import { choiceFields, DERENDER_PATH } from './request.ts';
import type { ServerFacts } from './server-facts.ts';

const EMPTY_MESSAGE: AssistantMessage = { role: 'assistant', content: '' };

/**
 * Pauses in milliseconds before each retry of a request that lets the engine's server parse a sampled reply. Waiting for a busy server is
 * cheaper than losing the reply. A server that is still busy after these pauses will probably not recover soon.
 */
const RETRY_PAUSES_MS = [50, 500, 2_000];

/**
 * Number of token ids from the end of the prompt that are sent to the server's parsers. They are needed because the ids before a word
 * decide whether a tokenizer writes it with a leading space.
 */
const PROMPT_TAIL_IDS = 32;

/** Sampled ids that are to be converted to a message. */
type SampledIds = {
  readonly promptIds: Int32Array;
  readonly ids: Int32Array;
  readonly finishReason: string;
};

/**
 * Converts sampled ids to messages with requests to the server. It retries while the server is unavailable, because the alternative,
 * sampling another reply, would discard these ids.
 */
export class MessageReader {
  private readonly server: EngineServer;
  private readonly facts: ServerFacts;
  private readonly clock: Clock;

  constructor(server: EngineServer, facts: ServerFacts, clock: Clock) {
    this.server = server;
    this.facts = facts;
    this.clock = clock;
  }

  /**
   * Parses the message of a reply. Tool calls that the server's parsers reject stay in the text, as in vLLM's chat completions. Rejects
   * with the signal's reason, and otherwise only with `engine_error`, because a caller would retry other errors and sample a second reply.
   * The parsing continues for a moment after the signal has aborted, so that a completely sampled reply is still recorded.
   */
  async read(
    request: GenerateRequest,
    sampled: SampledIds,
    context: ReplyContext,
    signal: AbortSignal,
  ): Promise<AssistantMessage> {
    // A reply that consisted only of its closing token has no ids left, and the server's parsers reject an empty list.
    if (sampled.ids.length === 0) return EMPTY_MESSAGE;
    return this.server.finishing(signal, (late) => this.parsed(request, sampled, context, late));
  }

  private async parsed(
    request: GenerateRequest,
    sampled: SampledIds,
    context: ReplyContext,
    signal: AbortSignal,
  ): Promise<AssistantMessage> {
    const options = this.optionsOf(context);
    const derendered = (asked: GenerateRequest): Promise<AssistantMessage> =>
      this.withRetries(() => derender(this.server, asked, sampled, options, signal), signal);
    try {
      return await derendered(request);
    } catch (error) {
      if (!hasCode(error, 'engine_rejected')) throw this.finalError(error);
    }
    try {
      return await derendered({ ...request, toolChoice: 'none' });
    } catch (error) {
      throw this.finalError(error);
    }
  }

  /**
   * Parses the ids of an incomplete reply, with the parser for streams and with the parser of {@link read}. It does not retry, because the
   * reply does not depend on the result.
   */
  async preview(
    request: TokenRequest,
    ids: Int32Array,
    context: ReplyContext,
    signal: AbortSignal,
  ): Promise<{ readonly streamed: StreamedReply; readonly whole: AssistantMessage }> {
    const sampled = { promptIds: request.prompt.ids, ids, finishReason: 'length' };
    const options = this.optionsOf(context);
    const [streamed, whole] = await Promise.all([
      derenderChunk(this.server, request, sampled, options, signal),
      derender(this.server, request, sampled, options, signal),
    ]);
    return { streamed, whole };
  }

  private optionsOf(context: ReplyContext): DerenderOptions {
    const { model, unknownFields } = this.facts;
    return { ...context, model, includeReasoning: !unknownFields.has('include_reasoning') };
  }

  private async withRetries<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T> {
    for (const pauseMs of RETRY_PAUSES_MS) {
      try {
        return await work();
      } catch (error) {
        if (!hasCode(error, 'engine_unavailable')) throw error;
        await sleep(this.clock, pauseMs, signal);
      }
    }
    return work();
  }

  private finalError(error: unknown): unknown {
    if (!FloeError.is(error) || error.code === 'engine_error') return error;
    const message = `the sampled reply could not be read: ${error.message}`;
    return this.server.error('engine_error', message, { status: error.details.status });
  }
}

function hasCode(error: unknown, code: FloeError['code']): boolean {
  return FloeError.is(error) && error.code === code;
}

/** Values that a request to the server's parsers needs in addition to the values of the sampled call. */
type DerenderOptions = ReplyContext & { readonly model: string; readonly includeReasoning: boolean };

/**
 * Converts one or more sampled ids to a message with the server's own parsers. The request's tools are sent along, because the parsers
 * convert arguments according to the tools' schemas. The messages of the conversation are not needed.
 */
export async function derender(
  server: EngineServer,
  request: GenerateRequest,
  sampled: SampledIds,
  options: DerenderOptions,
  signal: AbortSignal,
): Promise<AssistantMessage> {
  const field = `"generate_response":${generatedJson(request, sampled, JSON.stringify(sampled.finishReason))}`;
  const reply = await server.post(DERENDER_PATH, derenderBody(request, field, sampled, options), request, signal);
  const message = parseDerendered(await reply.read(), options, sampled.ids.length);
  return request.parallelToolCalls === false ? withFirstCallOnly(message) : message;
}

/**
 * Converts the first ids of an incomplete reply to the part of its message that the server would show in a stream. All ids are sent as one
 * chunk, because the server keeps no state between chunks and would parse earlier chunks again.
 */
export async function derenderChunk(
  server: EngineServer,
  request: GenerateRequest,
  sampled: SampledIds,
  options: DerenderOptions,
  signal: AbortSignal,
): Promise<StreamedReply> {
  const field = `"stream":true,"generate_chunk":${generatedJson(request, sampled, 'null')}`;
  const reply = await server.post(DERENDER_PATH, derenderBody(request, field, sampled, options), request, signal);
  return parseDerenderedChunk(await reply.read(), options);
}

/** Makes the JSON text of a reply of `/inference/v1/generate` with the given ids. `finishReason` is JSON text. */
function generatedJson({ completionId }: GenerateRequest, { ids }: SampledIds, finishReason: string): string {
  return (
    `{"request_id":${JSON.stringify(completionId)},"choices":[{"index":0,"token_ids":[${ids.join(',')}],` +
    `"finish_reason":${finishReason}}]}`
  );
}

function derenderBody(
  request: GenerateRequest,
  generatedField: string,
  { promptIds }: SampledIds,
  options: DerenderOptions,
): string {
  const promptTail = promptIds.subarray(Math.max(0, promptIds.length - PROMPT_TAIL_IDS));
  const model = JSON.stringify(options.model);
  const tools = request.tools.length === 0 ? '' : `,"tools":${request.toolsText}`;
  const choice = JSON.stringify({
    ...choiceFields(request),
    ...(options.includeReasoning ? { include_reasoning: true } : {}),
  });
  const chat = `{"model":${model},"messages":[{"role":"user","content":"."}]${tools}${choice === '{}' ? '}' : `,${choice.slice(1)}`}`;
  return `{"model":${model},${generatedField},"prompt_token_ids":[${promptTail.join(',')}],"chat_request":${chat}}`;
}

/** Drops all tool calls except the first, for requests that allow only one. vLLM's chat completions do the same. */
function withFirstCallOnly(message: AssistantMessage): AssistantMessage {
  const { tool_calls: calls } = message;
  return calls === undefined ? message : { ...message, tool_calls: calls.slice(0, 1) };
}
