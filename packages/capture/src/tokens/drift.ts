import type { AssistantMessage, ChatMessage, DriftClass } from '@floe-rl/core/schema';
import { compareCalls, endOfTurn, joinedTurn, sameText } from './same-turn.ts';

/** Reports whether two id sequences decode to the same text. Returns `null` when the texts were not compared. */
export type SameText = (a: Int32Array, b: Int32Array) => boolean | null;

/**
 * Classifies why the next prompt does not contain an assistant turn as it was sampled. `reply` is the sampled message. `returned` are the
 * messages of the next request, starting at the position of that reply. `proof` reports whether the sampled and the rendered ids decode to
 * the same text; it is called only when the harness returned the whole message. `isCut` is whether the prompt may have only the beginning of
 * the sampled turn.
 *
 * A turn is `retokenized` only when `proof` confirms equal texts, so that the model reads the same context. Without that proof, a turn that
 * the harness returned unchanged was altered by the chat template. The class is then `reasoning_dropped` when the reply had reasoning,
 * which templates drop, and `reserialized` otherwise.
 */
export function classifyDrift(
  reply: AssistantMessage,
  returned: readonly ChatMessage[],
  proof: () => boolean | null,
  isCut = false,
): DriftClass {
  const turn = leadingTurn(returned);
  if (turn === null) return 'rewritten';
  const calls = compareCalls(reply.tool_calls ?? [], turn.tool_calls ?? []);
  if (!sameText(turn, reply) || calls === 'different') return 'rewritten';
  const reasoning = (reply.reasoning_content ?? '').trim();
  const kept = (turn.reasoning_content ?? '').trim();
  if (reasoning !== kept) return kept === '' ? 'reasoning_dropped' : 'rewritten';
  if (proof() === true) return 'retokenized';
  if (isCut) return 'cut';
  const unchanged = calls === 'identical' && (reply.content ?? '') === (turn.content ?? '');
  return unchanged && reasoning !== '' ? 'reasoning_dropped' : 'reserialized';
}

/**
 * Rates how well `returned` begins with the reply: 2 when it has the ids of all tool calls of the reply, 1 when it has the same meaning, 0
 * otherwise. `returned` are the messages of a request, starting at the position of the reply.
 */
export function likenessOf(reply: AssistantMessage, returned: readonly ChatMessage[]): number {
  const turn = leadingTurn(returned);
  if (turn === null) return 0;
  const [calls, others] = [reply.tool_calls ?? [], turn.tool_calls ?? []];
  const hasIds = calls.length > 0 && calls.length === others.length;
  if (hasIds && calls.every((call, index) => call.id === others[index]?.id)) return 2;
  return sameText(turn, reply) && compareCalls(calls, others) !== 'different' ? 1 : 0;
}

/**
 * Returns the assistant turn at the start of `messages`, joined into one message; `null` when they do not begin with an assistant message.
 */
function leadingTurn(messages: readonly ChatMessage[]): AssistantMessage | null {
  const end = endOfTurn(messages, 0);
  return end === 0 ? null : joinedTurn(messages.slice(0, end) as AssistantMessage[]);
}
