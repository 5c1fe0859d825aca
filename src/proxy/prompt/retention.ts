import type { AssistantMessage, ChatMessage, TemplateFacts, ThinkingRetention } from '../../schema/index.ts';
import type { Turn } from './prefix-index.ts';

/** Where a server has no parser for thinking, it stands in the text between these, and templates look for it there. */
const INLINE_END = '</think>';

export function holdsThinking({ content, reasoning_content: thinking }: AssistantMessage): boolean {
  return (thinking ?? '') !== '' || (content ?? '').includes(INLINE_END);
}

export function anyThinking(messages: readonly ChatMessage[]): boolean {
  return messages.some((message) => message.role === 'assistant' && holdsThinking(message));
}

/**
 * Whether a prompt that goes on from the ids of `turn` has the thinking that it shall: splicing keeps all of it. `added`: the
 * messages behind the turn.
 */
export function mayKeepThinking(
  retention: ThinkingRetention,
  { thinking }: TemplateFacts,
  turn: Turn,
  added: readonly ChatMessage[],
): boolean {
  if (retention === 'all' || !turn.thinks) return true;
  const boundary = added.some(({ role }) => role === 'user') ? 'user_message' : 'tool_results';
  if (retention === 'tool_cycle' && boundary === 'tool_results') return true;
  return thinking[boundary] === 'kept';
}
