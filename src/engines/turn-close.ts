/** A tool call of a placeholder turn. */
export type PlaceholderCall = { readonly id: string; readonly name: string };

/** Two words each: how the second one is tokenized does not depend on the text before the first. */
// words: quoted
const PLACEHOLDER_QUESTION = 'Go on';
export const PLACEHOLDER_ANSWER = 'All right';

/**
 * A history that ends in an assistant turn with these calls, as JSON texts. It replaces a real conversation for templates whose
 * rendering of later messages depends on nothing before that turn.
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

/** The ids after the close with this number, counted from 1, or all ids for 0; `null` when there are fewer closes. */
export function idsAfterClose(ids: Int32Array, closeIds: readonly number[], number: number): Int32Array | null {
  const positions = closePositions(ids, closeIds, number);
  if (positions.length < number) return null;
  return ids.subarray(number === 0 ? 0 : (positions[number - 1] as number) + 1);
}

/** The positions of the first closes, at most `limit`. */
function closePositions(ids: Int32Array, closeIds: readonly number[], limit: number): number[] {
  const positions: number[] = [];
  for (let at = 0; at < ids.length && positions.length < limit; at++) {
    if (closeIds.includes(ids[at] as number)) positions.push(at);
  }
  return positions;
}

/** The end of a rendered history: the id before each of its closes, and the ids after the last one. */
export type HistoryEnd = { readonly before: Int32Array; readonly tail: Int32Array };

/** `null` for a history without a close. */
export function historyEndOf(ids: Int32Array, closeIds: readonly number[]): HistoryEnd | null {
  const positions = closePositions(ids, closeIds, ids.length);
  const last = positions.at(-1);
  if (last === undefined) return null;
  return { before: Int32Array.from(positions, (at) => ids[at - 1] ?? -1), tail: ids.slice(last + 1) };
}

/**
 * The ids that new messages add after a closed turn. `whole` is the rendering of the history and the messages: its first closes, as
 * many as the history has, belong to the history if the same ids precede them there. `null` when they do not.
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
  // A copy, so that the rest of the rendering does not stay in memory.
  const suffix = whole.slice(last + 1);
  return suffix.length > tail.length && equalIds(suffix.subarray(0, tail.length), tail) ? suffix : null;
}

export function equalIds(a: Int32Array, b: Int32Array): boolean {
  return a.length === b.length && a.every((id, index) => id === b[index]);
}
