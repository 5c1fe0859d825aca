/**
 * A tool call of a placeholder history. A placeholder history is a short conversation that replaces the real one when only new messages are
 * to be rendered.
 */
export type PlaceholderCall = { readonly id: string; readonly name: string };

/**
 * Texts of the user message and of the assistant message in placeholder histories. Each text has two words, because the tokens of the
 * second word do not depend on what the template writes before the text.
 */
// words: quoted
const PLACEHOLDER_QUESTION = 'Go on';
export const PLACEHOLDER_ANSWER = 'All right';

/**
 * Makes a history, as JSON texts, that ends in an assistant turn with the given tool calls. It replaces a real conversation when the
 * template renders later messages independently of everything before that turn.
 */
export function placeholderHistory(calls: readonly PlaceholderCall[]): readonly string[] {
  const turn =
    calls.length === 0
      ? { role: 'assistant', content: PLACEHOLDER_ANSWER }
      : {
          role: 'assistant',
          content: null,
          tool_calls: calls.map(({ id, name }) => ({ id, type: 'function', function: { name, arguments: '{}' } })),
        };
  return [JSON.stringify({ role: 'user', content: PLACEHOLDER_QUESTION }), JSON.stringify(turn)];
}

/**
 * Returns the token ids that follow the `number`-th closing id (an id that ends a turn), counted from 1, or all ids when `number` is 0.
 * Returns `null` when `ids` contains fewer closing ids.
 */
export function idsAfterClose(ids: Int32Array, closeIds: readonly number[], number: number): Int32Array | null {
  const positions = closePositions(ids, closeIds, number);
  if (positions.length < number) return null;
  return ids.subarray(number === 0 ? 0 : (positions[number - 1] as number) + 1);
}

/**
 * Returns the positions in `ids` of the first `limit` closing ids (ids that end a turn), or of all closing ids when there are fewer.
 */
function closePositions(ids: Int32Array, closeIds: readonly number[], limit: number): number[] {
  const positions: number[] = [];
  for (let at = 0; at < ids.length && positions.length < limit; at++) {
    if (closeIds.includes(ids[at] as number)) positions.push(at);
  }
  return positions;
}

/**
 * Facts of a rendered history that make it possible to find its end in a longer rendering. A closing id is an id that ends a turn. `before[k]`
 * is the id directly before the k-th closing id of the history. `tail` has the ids after its last closing id.
 */
export type HistoryEnd = { readonly before: Int32Array; readonly tail: Int32Array };

/**
 * Determines how a rendered history ends: the ids in front of its closing ids (ids that end a turn), and the ids after the last closing id.
 * Returns `null` when the history contains no closing id.
 */
export function historyEndOf(ids: Int32Array, closeIds: readonly number[]): HistoryEnd | null {
  const positions = closePositions(ids, closeIds, ids.length);
  const last = positions.at(-1);
  if (last === undefined) return null;
  return { before: Int32Array.from(positions, (at) => ids[at - 1] ?? -1), tail: ids.slice(last + 1) };
}

/**
 * Returns the token ids that new messages add after a history. `whole` is the rendering of the history followed by the new messages. When the
 * history has n closing ids (ids that end a turn), the first n closing ids of `whole` are assumed to belong to the history.
 *
 * Returns `null` when this assumption is wrong. It is wrong when the id in front of one of these n closing ids differs from the id in
 * `before`. It is also wrong when the ids after the n-th closing id do not begin with `tail`.
 */
export function suffixAfter(
  whole: Int32Array,
  closeIds: readonly number[],
  { before, tail }: HistoryEnd,
): Int32Array | null {
  const positions = closePositions(whole, closeIds, before.length);
  const last = positions.at(-1);
  const precedingIds = Int32Array.from(positions, (at) => whole[at - 1] ?? -1);
  if (last === undefined || !equalIds(precedingIds, before)) return null;
  // The suffix is copied, so that the rest of the rendering does not stay in memory.
  const suffix = whole.slice(last + 1);
  return suffix.length > tail.length && equalIds(suffix.subarray(0, tail.length), tail) ? suffix : null;
}

/**
 * Whether a rendered history ends like `plain`, which is the end of a rendered placeholder history (a short invented conversation) without
 * tool calls. The histories must have the same ids after their last end-of-turn id.
 */
export function closesLike({ before, tail }: HistoryEnd, plain: HistoryEnd): boolean {
  return before.length >= plain.before.length && equalIds(tail, plain.tail);
}

export function equalIds(a: Int32Array, b: Int32Array): boolean {
  return a.length === b.length && a.every((id, index) => id === b[index]);
}
