import type { Completion } from '@floe-rl/capture';
import { joinedWithin, MAX_SEARCH_CHARS, searchedText } from '@floe-rl/core/protocol';

/** Returns the text of an attempt that searches for messages cover: each message of its model calls and each reply, once. */
export function searchTextOf(completions: readonly Completion[]): string {
  const seen = new Set<string>();
  const texts: string[] = [];
  for (const { request, message } of completions) {
    const { messages, messageTexts } = request;
    // A request repeats the messages of an earlier request, and its new messages are at the end.
    let from = messages.length;
    while (from > 0 && !seen.has(messageTexts[from - 1] ?? '')) from--;
    for (let at = from; at < messages.length; at++) {
      seen.add(messageTexts[at] ?? '');
      const added = messages[at];
      if (added !== undefined && added.role !== 'assistant') texts.push(searchedText(added));
    }
    texts.push(searchedText(message));
  }
  return joinedWithin(texts, MAX_SEARCH_CHARS);
}
