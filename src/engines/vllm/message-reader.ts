import { type Clock, sleep } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import type { AssistantMessage } from '../../schema/index.ts';
import type { GenerateRequest } from '../engine.ts';
import type { EngineServer } from '../engine-server.ts';
import { parseDerendered, type ReplyContext } from './reply.ts';
import { choiceFields, DERENDER_PATH } from './request.ts';
import type { ServerFacts } from './server-facts.ts';

const EMPTY_MESSAGE: AssistantMessage = { role: 'assistant', content: '' };

/**
 * Pauses in milliseconds before each retry of parsing a message. A sampled reply is worth the wait, and a busy server either recovers
 * within these pauses or not at all.
 */
const RETRY_PAUSES_MS = [50, 500, 2_000];

/**
 * Number of ids from the end of the prompt that are sent to the parsers: whether a tokenizer writes a word with a leading space depends
 * on the ids before it.
 */
const PROMPT_TAIL_IDS = 32;

/** Sampled ids that are to be converted to a message. */
type SampledIds = {
  readonly promptIds: Int32Array;
  readonly ids: Int32Array;
  readonly finishReason: string;
};

/** Converts sampled ids to messages. Retries while the server is unavailable, because sampling once more would lose the reply. */
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
   * Parses the message of a reply. Calls that the parsers reject stay in the text, as in vLLM's chat completions. Rejects with the
   * signal's reason, and otherwise only with `engine_error`, because a caller would retry other errors and sample a second reply.
   */
  async read(
    request: GenerateRequest,
    sampled: SampledIds,
    context: ReplyContext,
    signal: AbortSignal,
  ): Promise<AssistantMessage> {
    // A reply that consists only of its closing token has no ids left, and the parsers reject an empty list.
    if (sampled.ids.length === 0) return EMPTY_MESSAGE;
    const { model, unknownFields } = this.facts;
    const options = { ...context, model, includeReasoning: !unknownFields.has('include_reasoning') };
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

/**
 * Converts sampled ids, at least one, to a message with the server's own parsers. The tools are sent along, because parsers convert
 * arguments according to their schemas. The conversation is not needed.
 */
export async function derender(
  server: EngineServer,
  request: GenerateRequest,
  { ids, promptIds, finishReason }: SampledIds,
  context: ReplyContext & { readonly model: string; readonly includeReasoning: boolean },
  signal: AbortSignal,
): Promise<AssistantMessage> {
  const promptTail = promptIds.subarray(Math.max(0, promptIds.length - PROMPT_TAIL_IDS));
  const model = JSON.stringify(context.model);
  const tools = request.tools.length === 0 ? '' : `,"tools":${request.toolsText}`;
  const choice = JSON.stringify({
    ...choiceFields(request),
    ...(context.includeReasoning ? { include_reasoning: true } : {}),
  });
  const chat = `{"model":${model},"messages":[{"role":"user","content":"."}]${tools}${choice === '{}' ? '}' : `,${choice.slice(1)}`}`;
  const requestId = JSON.stringify(request.completionId);
  const body =
    `{"model":${model},"generate_response":{"request_id":${requestId},"choices":[{"index":0,"token_ids":[${ids.join(',')}],` +
    `"finish_reason":${JSON.stringify(finishReason)}}]},"prompt_token_ids":[${promptTail.join(',')}],"chat_request":${chat}}`;
  const reply = await server.post(DERENDER_PATH, body, request, signal);
  const message = parseDerendered(await reply.read(), context, ids.length);
  return request.parallelToolCalls === false ? withFirstCallOnly(message) : message;
}

/** Drops all calls except the first, for requests that allow only one. vLLM's chat completions do the same. */
function withFirstCallOnly(message: AssistantMessage): AssistantMessage {
  const { tool_calls: calls } = message;
  return calls === undefined ? message : { ...message, tool_calls: calls.slice(0, 1) };
}

/** A message that has been cut before a stop string, and that string. */
type CutMessage = { readonly message: AssistantMessage; readonly stop: string };

/**
 * Cuts a message before the stop string that ended it. The parsers receive all ids, including the rest of the last token, while the text
 * of a chat completion ends before the stop string. Thinking precedes text, so a stop string in the thinking is the one that ended the
 * reply. Returns `null` when no stop string occurs.
 */
export function cutAtStop(message: AssistantMessage, stops: readonly string[]): CutMessage | null {
  const inThinking = firstStop(message.reasoning_content ?? '', stops);
  if (inThinking !== null) {
    const { at, stop } = inThinking;
    const reasoning = (message.reasoning_content ?? '').slice(0, at);
    return {
      message: { role: 'assistant', content: '', ...(reasoning === '' ? {} : { reasoning_content: reasoning }) },
      stop,
    };
  }
  const inText = firstStop(message.content ?? '', stops);
  if (inText === null) return null;
  const { tool_calls: _, ...rest } = message;
  return { message: { ...rest, content: (message.content ?? '').slice(0, inText.at) }, stop: inText.stop };
}

/** Finds the stop string that ends first in the text; `null` when none occurs. */
function firstStop(text: string, stops: readonly string[]): { at: number; stop: string } | null {
  let first: { at: number; stop: string } | null = null;
  for (const stop of stops) {
    const at = text.indexOf(stop);
    if (at >= 0 && (first === null || at + stop.length < first.at + first.stop.length)) first = { at, stop };
  }
  return first;
}
