/** A call as a stand-in turn has it. */
export type StandInCall = { readonly id: string; readonly name: string };

/** Two words each: how the second is written as ids does not depend on what stands before the first. */
const STAND_IN_QUESTION = 'Go on';
export const STAND_IN_ANSWER = 'All right';

/**
 * A history that ends in a turn with these calls, as JSON texts: what a template looks at to render the messages behind it, where
 * it looks no further than that turn.
 */
export function standInHistory(calls: readonly StandInCall[]): readonly string[] {
  const turn =
    calls.length === 0
      ? { role: 'assistant', content: STAND_IN_ANSWER }
      : {
          role: 'assistant',
          content: null,
          tool_calls: calls.map(({ id, name }) => ({ id, type: 'function', function: { name, arguments: '{}' } })),
        };
  return [JSON.stringify({ role: 'user', content: STAND_IN_QUESTION }), JSON.stringify(turn)];
}

/** What follows the close number `count`, from 1, or all for 0; null when there are fewer. */
export function behindClose(ids: Int32Array, closeIds: readonly number[], count: number): Int32Array | null {
  const places = closesIn(ids, closeIds, count);
  if (places.length < count) return null;
  return ids.subarray(count === 0 ? 0 : (places[count - 1] as number) + 1);
}

/** Where the first `most` closes stand. */
function closesIn(ids: Int32Array, closeIds: readonly number[], most: number): number[] {
  const places: number[] = [];
  for (let at = 0; at < ids.length && places.length < most; at++) {
    if (closeIds.includes(ids[at] as number)) places.push(at);
  }
  return places;
}

/** A rendered history that ends in an assistant turn: the id before each of its closes, and what stands behind the last. */
export type Closing = { readonly before: Int32Array; readonly tail: Int32Array };

/** Null for a history without any close. */
export function closingOf(ids: Int32Array, closeIds: readonly number[]): Closing | null {
  const places = closesIn(ids, closeIds, ids.length);
  const last = places.at(-1);
  if (last === undefined) return null;
  return { before: Int32Array.from(places, (at) => ids[at - 1] ?? -1), tail: ids.slice(last + 1) };
}

/**
 * The ids that new messages add behind a closed turn: `whole` is the rendering of a history and the messages. As many closes as the
 * history has are the history's, if what stands before each is the same there, whose text is. Null where `whole` is not made like that.
 */
export function suffixOf(whole: Int32Array, closeIds: readonly number[], { before, tail }: Closing): Int32Array | null {
  const places = closesIn(whole, closeIds, before.length);
  const last = places.at(-1);
  if (
    last === undefined ||
    !equalIds(
      Int32Array.from(places, (at) => whole[at - 1] ?? -1),
      before,
    )
  )
    return null;
  // Not a view: the rest of the rendering is not kept.
  const suffix = whole.slice(last + 1);
  return suffix.length > tail.length && equalIds(suffix.subarray(0, tail.length), tail) ? suffix : null;
}

export function equalIds(a: Int32Array, b: Int32Array): boolean {
  return a.length === b.length && a.every((id, index) => id === b[index]);
}
