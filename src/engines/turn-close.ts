/** A call as a stand-in turn has it. */
export type StandInCall = { readonly id: string; readonly name: string };

/** One word: enough to be a turn. */
const STAND_IN_QUESTION = 'Go';
const STAND_IN_ANSWER = 'ok';

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

export function countCloses(ids: Int32Array, closeIds: readonly number[]): number {
  let count = 0;
  for (const id of ids) if (closeIds.includes(id)) count++;
  return count;
}

/** What follows the close number `count`, from 1, or all for 0; null when there are fewer. */
export function behindClose(ids: Int32Array, closeIds: readonly number[], count: number): Int32Array | null {
  let left = count;
  let at = 0;
  for (; left > 0 && at < ids.length; at++) if (closeIds.includes(ids[at] as number)) left--;
  return left > 0 ? null : ids.subarray(at);
}

/** A rendered history that ends in an assistant turn: how many closes it has, and what the template puts behind the last. */
export type Closing = { readonly closes: number; readonly tail: Int32Array };

export function closingOf(ids: Int32Array, closeIds: readonly number[]): Closing | null {
  const closes = countCloses(ids, closeIds);
  const tail = closes === 0 ? null : behindClose(ids, closeIds, closes);
  return tail === null ? null : { closes, tail };
}

/**
 * The ids that new messages add behind a closed turn: `whole` is the rendering of a history and the messages, `closes` how many
 * closes the history has, `tail` what the template puts behind a last one. Null where `whole` is not made like that.
 */
export function suffixOf(whole: Int32Array, closeIds: readonly number[], { closes, tail }: Closing): Int32Array | null {
  const suffix = behindClose(whole, closeIds, closes);
  if (suffix === null || suffix.length <= tail.length) return null;
  for (let i = 0; i < tail.length; i++) if (suffix[i] !== tail[i]) return null;
  // Not a view: the rest of the rendering is not kept.
  return suffix.slice();
}

export function equalIds(a: Int32Array, b: Int32Array): boolean {
  return a.length === b.length && a.every((id, index) => id === b[index]);
}
