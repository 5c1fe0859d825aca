import type { AssistantMessage } from '../../schema/index.ts';
import type { GenerateRequest } from '../engine.ts';
import type { EngineServer } from '../engine-server.ts';
import { DERENDER_PATH } from './probe.ts';
import { parseDerendered, type ReplyContext } from './reply.ts';
import { choiceFields } from './request.ts';

/** How many of the prompt's last ids go along: a tokenizer writes a word's first space by what stands before it. */
const PROMPT_TAIL_IDS = 32;

/** One short reply to be read. */
type Sampled = {
  readonly promptTail: Int32Array;
  readonly ids: Int32Array;
  readonly finishReason: string;
};

/**
 * Reads a message out of sampled ids by the server's own parsers. `ids` are not empty.
 * The tools go along whole, since parsers convert arguments by them; of the conversation nothing does.
 */
export async function derender(
  server: EngineServer,
  request: GenerateRequest,
  sampled: Sampled,
  context: ReplyContext & { readonly model: string; readonly includeReasoning: boolean },
  signal: AbortSignal,
): Promise<AssistantMessage> {
  const { ids, promptTail, finishReason } = sampled;
  const model = JSON.stringify(context.model);
  const tools = request.tools.length === 0 ? '' : `,"tools":${request.toolsText}`;
  const choice = JSON.stringify({
    ...choiceFields(request),
    ...(context.includeReasoning ? { include_reasoning: true } : {}),
  });
  const chat = `{"model":${model},"messages":[{"role":"user","content":"."}]${tools}${choice === '{}' ? '}' : `,${choice.slice(1)}`}`;
  const name = JSON.stringify(request.completionId);
  const body =
    `{"model":${model},"generate_response":{"request_id":${name},"choices":[{"index":0,"token_ids":[${ids.join(',')}],` +
    `"finish_reason":${JSON.stringify(finishReason)}}]},"prompt_token_ids":[${promptTail.join(',')}],"chat_request":${chat}}`;
  const reply = await server.post(DERENDER_PATH, body, request, signal);
  const message = parseDerendered(await reply.read(), context, ids.length);
  return request.parallelToolCalls === false ? firstCallOnly(message) : message;
}

/** The end of a prompt, and of what was begun behind it. */
export function tailOf(prompt: Int32Array): Int32Array {
  return prompt.subarray(Math.max(0, prompt.length - PROMPT_TAIL_IDS));
}

/** As vLLM's chat does with a policy that calls more than it may. */
function firstCallOnly(message: AssistantMessage): AssistantMessage {
  const { tool_calls: calls } = message;
  return calls === undefined ? message : { ...message, tool_calls: calls.slice(0, 1) };
}

/** Where a stop string begins; what precedes it is the message. */
export type StopFound = { readonly message: AssistantMessage; readonly text: string };

/**
 * The message without the stop string that ended it, and what followed it in the last token: parsers read all of the ids, while
 * a chat's text ends before it. Thinking comes before text, so the first string found there is the one. Null: none is found.
 */
export function cutAtStop(message: AssistantMessage, stops: readonly string[]): StopFound | null {
  const inThinking = firstOf(message.reasoning_content ?? '', stops);
  if (inThinking !== null) {
    const { at, text } = inThinking;
    const reasoning = (message.reasoning_content ?? '').slice(0, at);
    return {
      message: { role: 'assistant', content: '', ...(reasoning === '' ? {} : { reasoning_content: reasoning }) },
      text,
    };
  }
  const inText = firstOf(message.content ?? '', stops);
  if (inText === null) return null;
  const { tool_calls: _, ...rest } = message;
  return { message: { ...rest, content: (message.content ?? '').slice(0, inText.at) }, text: inText.text };
}

function firstOf(text: string, stops: readonly string[]): { at: number; text: string } | null {
  let found: { at: number; text: string } | null = null;
  for (const stop of stops) {
    const at = text.indexOf(stop);
    if (at >= 0 && (found === null || at + stop.length < found.at + found.text.length)) found = { at, text: stop };
  }
  return found;
}
