import type { AssistantMessage, ChatMessage, DriftClass } from '../schema/index.ts';
import { compareCalls, endOfTurn, joinedTurn, sameText } from './same-turn.ts';

/** Whether two id sequences decode to the same text; `null` when that is not known. */
export type SameText = (a: Int32Array, b: Int32Array) => boolean | null;

/**
 * Why an assistant turn is not in the next prompt as it was sampled. What the harness changed is derived from the messages: `returned`
 * are those of the next request, from the position of the reply. `proof` reports whether the sampled and the rendered ids decode to
 * the same text; it is called only when the harness returned the whole reply.
 *
 * Only `retokenized` is proven: the context reads the same. When the harness returned everything and the texts differ, or were not
 * compared, the template caused it: `reasoning_dropped` if there was reasoning, which templates drop, else `reserialized`.
 */
export function classifyDrift(
  reply: AssistantMessage,
  returned: readonly ChatMessage[],
  proof: () => boolean | null,
): DriftClass {
  const turn = leadingTurn(returned);
  if (turn === null) return 'rewritten';
  const calls = compareCalls(reply.tool_calls ?? [], turn.tool_calls ?? []);
  if (!sameText(turn, reply) || calls === 'different') return 'rewritten';
  const reasoning = (reply.reasoning_content ?? '').trim();
  const kept = (turn.reasoning_content ?? '').trim();
  if (reasoning !== kept) return kept === '' ? 'reasoning_dropped' : 'rewritten';
  if (proof() === true) return 'retokenized';
  const unchanged = calls === 'identical' && (reply.content ?? '') === (turn.content ?? '');
  return unchanged && reasoning !== '' ? 'reasoning_dropped' : 'reserialized';
}

/**
 * How well `returned`, see {@link classifyDrift}, begins with the reply: 2 when it has the ids of all its calls, 1 when it has the
 * same meaning, 0 otherwise.
 */
export function likenessOf(reply: AssistantMessage, returned: readonly ChatMessage[]): number {
  const turn = leadingTurn(returned);
  if (turn === null) return 0;
  const [calls, others] = [reply.tool_calls ?? [], turn.tool_calls ?? []];
  const hasIds = calls.length > 0 && calls.length === others.length;
  if (hasIds && calls.every((call, index) => call.id === others[index]?.id)) return 2;
  return sameText(turn, reply) && compareCalls(calls, others) !== 'different' ? 1 : 0;
}

/** The turn that `messages` begin with; `null` when they do not begin with an assistant message. */
function leadingTurn(messages: readonly ChatMessage[]): AssistantMessage | null {
  const end = endOfTurn(messages, 0);
  return end === 0 ? null : joinedTurn(messages.slice(0, end) as AssistantMessage[]);
}
