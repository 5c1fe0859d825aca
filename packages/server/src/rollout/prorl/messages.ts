import { type ChatMessage, contentText, type Trace, type Trajectory } from '@floe-rl/core/schema';
import type { ProrlMessage } from './schema.ts';

/** The conversation of a session: its messages with their token ids, and the tools that the policy had. */
export type Conversation = { readonly messages: ProrlMessage[]; readonly tools: readonly unknown[] };

/**
 * Returns the conversation of the main agent up to its last model call. `trajectory` has one trace for each call (builder `per_request`).
 * The `token_ids` of all messages, one after the other, are the exact prompt and reply of that last call. An assistant message has
 * `input_ids`, `output_ids` and `logprobs` when the last call's prompt contains the ids that the policy sampled for this message. When the
 * agent rewrote the message, these fields are `null`, and the tokens of the message are part of the `token_ids` of a later message.
 */
export function conversationOf(trajectory: Trajectory): Conversation {
  const calls = trajectory.traces.filter(({ metadata }) => metadata.call_kind === 'main' && metadata.thread === 'main');
  const last = calls.at(-1) ?? trajectory.traces.at(-1);
  if (last === undefined) return { messages: [], tools: [] };
  const all = [...last.prompt_messages, ...last.response_messages];
  const sequence = [...last.prompt_ids, ...last.response_ids];
  const messages = all.map((message) => prorlMessageOf(message));
  let end = 0;
  for (const [index, call] of callsByMessage(calls.length === 0 ? [last] : calls, all.length)) {
    const reply = messages[index];
    if (reply === undefined || reply.role !== 'assistant' || call.prompt_ids.length < end) continue;
    if (!isPrefix(call, sequence)) continue;
    assign(messages, index, sequence.slice(end, call.prompt_ids.length));
    end = call.prompt_ids.length + call.response_ids.length;
    messages[index] = {
      ...reply,
      token_ids: call.response_ids,
      input_ids: call.prompt_ids,
      output_ids: call.response_ids,
      logprobs: call.response_logprobs,
    };
  }
  return { messages, tools: last.tools };
}

/** Returns the index of each reply in the conversation together with the last call that produced the reply, sorted by index. */
function callsByMessage(calls: readonly Trace[], length: number): [number, Trace][] {
  const found = new Map<number, Trace>();
  for (const call of calls) if (call.prompt_messages.length < length) found.set(call.prompt_messages.length, call);
  return [...found].sort(([a], [b]) => a - b);
}

/** Whether `sequence` begins with the call's prompt ids followed by its response ids. */
function isPrefix({ prompt_ids, response_ids }: Trace, sequence: readonly number[]): boolean {
  const startsAt = (ids: readonly number[], from: number) => ids.every((id, index) => sequence[from + index] === id);
  return startsAt(prompt_ids, 0) && startsAt(response_ids, prompt_ids.length);
}

/** Gives tokens that were not sampled in this conversation to the message before the one at `index`. */
function assign(messages: ProrlMessage[], index: number, ids: readonly number[]): void {
  const before = messages[index - 1];
  if (before !== undefined) messages[index - 1] = { ...before, token_ids: [...before.token_ids, ...ids] };
}

function prorlMessageOf(message: ChatMessage): ProrlMessage {
  const content = contentText(message.content);
  const calls = message.role === 'assistant' ? message.tool_calls?.map((call) => call.function) : undefined;
  const thinking = message.role === 'assistant' ? message.reasoning_content : undefined;
  return {
    role: message.role,
    content,
    ...(thinking === undefined ? {} : { reasoning_content: thinking }),
    ...(calls === undefined
      ? {}
      : { tool_calls: calls.map(({ name, arguments: args }) => ({ name, arguments: args })) }),
    token_ids: [],
    input_ids: null,
    output_ids: null,
    logprobs: null,
  };
}
