import type { AssistantMessage } from '@floe-rl/core/schema';

/** A message that was cut before a stop string. `stop` is that stop string. */
type CutMessage = { readonly message: AssistantMessage; readonly stop: string };

/**
 * Cuts a message before the stop string that ended the reply, as engines do in chat completions. The cut is necessary when the parsers
 * received all sampled ids, because the ids include the stop string and the rest of the last token. Thinking precedes text, so if the thinking
 * contains a stop string, this stop string ended the reply. Returns `null` when no stop string occurs.
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

/** A stop string in a text. `at` is the position of its first character. */
type FoundStop = { readonly at: number; readonly stop: string };

/** Returns the stop string that ends first in a text, among the stop strings that end after the position `after`; `null` when there is none. */
export function firstStop(text: string, stops: readonly string[], after = 0): FoundStop | null {
  let first: FoundStop | null = null;
  for (const stop of stops) {
    const at = text.indexOf(stop, Math.max(0, after - stop.length + 1));
    if (at >= 0 && (first === null || at + stop.length < first.at + first.stop.length)) first = { at, stop };
  }
  return first;
}

/** Returns the number of characters at the end of a text that may be the beginning of a stop string. */
export function stopStartLength(text: string, stops: readonly string[]): number {
  let longest = 0;
  for (const stop of stops) {
    let length = Math.min(stop.length - 1, text.length);
    while (length > longest && !text.endsWith(stop.slice(0, length))) length--;
    longest = Math.max(longest, length);
  }
  return longest;
}

/**
 * Incomplete characters at the end of a text: replacement characters, which a tokenizer's decoder writes for incomplete UTF-8, or the first
 * half of a surrogate pair. The lookbehind keeps the search linear: without it, a long run of these characters within the text would be
 * searched once from each of its characters.
 */
export const INCOMPLETE_END = /(?<![\uFFFD\uD800-\uDBFF])[\uFFFD\uD800-\uDBFF]+$/;

/**
 * A stop string that begins in the first part of a resumed reply and ends in its later part. `count` is the number of ids up to and including
 * the id that completes the stop string.
 */
export type SeamStop = { readonly stop: string; readonly count: number };

/**
 * Finds the stop string that begins in the first part of a resumed reply and ends in its later part. The engine does not find it, because
 * it searches only the text that it samples in the later call. `ids` are the ids of both parts, and the first `seam` of them belong to the
 * first part. `decode` returns the text of ids. Returns `null` when there is no such stop string.
 */
export async function stopAcrossSeam(
  ids: Int32Array,
  seam: number,
  stops: readonly string[],
  decode: (ids: Int32Array) => Promise<string>,
): Promise<SeamStop | null> {
  if (stops.length === 0 || seam === 0 || seam >= ids.length) return null;
  const first = await decode(ids.subarray(0, seam));
  const before = first.replace(INCOMPLETE_END, '');
  if (before.length === first.length && stopStartLength(before, stops) === 0) return null;
  const found = firstStop(await decode(ids), stops, before.length);
  // The engine itself finds a stop string that begins in the later part, and ends the reply there. The exception is a stop string whose
  // first character has bytes in both parts, because the engine cannot decode this character.
  const lastStart = before.length < first.length ? before.length : before.length - 1;
  if (found === null || found.at > lastStart) return null;
  const end = found.at + found.stop.length;
  for (let count = seam + 1; count < ids.length; count++) {
    const text = (await decode(ids.subarray(0, count))).replace(INCOMPLETE_END, '');
    if (text.length >= end) return { stop: found.stop, count };
  }
  return { stop: found.stop, count: ids.length };
}
