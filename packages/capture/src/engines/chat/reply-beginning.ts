import type { AssistantMessage } from '@floe-rl/core/schema';
import { INCOMPLETE_END, stopStartLength } from './stop-strings.ts';

/** White space and incomplete characters at the end of a text. The lookbehind has the same purpose as in {@link INCOMPLETE_END}. */
const UNSETTLED_END = /(?<![\s\uFFFD\uD800-\uDBFF])[\s\uFFFD\uD800-\uDBFF]+$/;

/** The beginning of a reply's message: its thinking (`reasoning`) and its text. `text` is empty until the thinking is complete. */
export type ReplyBeginning = { readonly reasoning: string; readonly text: string };

/** What a server's parser for streams returns for a reply that is still being sampled. `hasCalls` is whether it has found a tool call. */
export type StreamedReply = ReplyBeginning & { readonly hasCalls: boolean };

/**
 * Returns the part of an incomplete reply that its complete message will begin with. Two parsers have parsed the incomplete reply. `streamed`
 * is the result of the parser for streams, which never retracts output, and `whole` is the result of the parser for complete replies. Only
 * what both results have in common is returned, because one of the parsers may take an incomplete tool call or unfinished thinking for text.
 *
 * Three things are left out: white space at the end, which a parser may remove later; incomplete characters; and everything after the start of
 * the first stop string. A text at the end that may become a stop string counts as one.
 */
export function agreedBeginning(
  streamed: StreamedReply,
  whole: AssistantMessage,
  stops: readonly string[],
): ReplyBeginning {
  const reasoning = whole.reasoning_content ?? '';
  const text = whole.content ?? '';
  const hasText = streamed.text.trim() !== '' && text.trim() !== '';
  const isThinkingComplete = hasText || (streamed.hasCalls && (whole.tool_calls?.length ?? 0) > 0);
  if (!isThinkingComplete || stops.some((stop) => reasoning.includes(stop))) {
    return { reasoning: settled(commonBeginning(streamed.reasoning, upToStop(reasoning, stops))), text: '' };
  }
  if (streamed.reasoning.trim() !== reasoning.trim()) return { reasoning: '', text: '' };
  return { reasoning, text: settled(upToStop(sharedText(streamed.text, text), stops)) };
}

/**
 * Returns the common beginning of two texts. White space at the start of the texts may differ, and the result has the white space of `whole`.
 */
function sharedText(streamed: string, whole: string): string {
  const body = whole.trimStart();
  const shared = commonBeginning(streamed.trimStart(), body);
  return shared === '' ? '' : whole.slice(0, whole.length - body.length) + shared;
}

function commonBeginning(a: string, b: string): string {
  let length = 0;
  while (length < a.length && length < b.length && a[length] === b[length]) length++;
  return a.slice(0, length);
}

/**
 * Returns the text before its first stop string. Without one, leaves out incomplete characters at the end of the text, and then the end of the
 * rest if a stop string may begin there.
 */
function upToStop(text: string, stops: readonly string[]): string {
  let end = text.length;
  for (const stop of stops) {
    const at = text.indexOf(stop);
    if (at >= 0) end = Math.min(end, at);
  }
  if (end < text.length) return text.slice(0, end);
  const sound = text.replace(INCOMPLETE_END, '');
  return sound.slice(0, sound.length - stopStartLength(sound, stops));
}

/** Removes white space and incomplete characters from the end of a text. */
function settled(text: string): string {
  return text.replace(UNSETTLED_END, '');
}
