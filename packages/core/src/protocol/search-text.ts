import type { ChatMessage } from '../schema/index.ts';
import { lowerCaseWords } from '../words.ts';

/** Maximum number of characters of one message that are found by a search. */
const MAX_MESSAGE_CHARS = 2_000;
/** Maximum number of characters that a node sends of the messages of a session. A server may index fewer. */
export const MAX_SEARCH_CHARS = 65_536;
/** Maximum length of a word that a search can find. Longer words are data, such as base64. */
const MAX_WORD_CHARS = 64;
/** Maximum number of phrases of one search. */
const MAX_PHRASES = 20;

/** Returns the text of a message for searches: the beginning of its text, its thinking, and its tool calls. */
export function searchedText(message: ChatMessage): string {
  const { content } = message;
  const texts =
    typeof content === 'string' || content === null
      ? [content ?? '']
      : content.map((part) => (part.type === 'text' ? part.text : ''));
  if (message.role === 'assistant') {
    texts.push(message.reasoning_content ?? '');
    for (const { function: called } of message.tool_calls ?? []) texts.push(called.name, called.arguments);
  }
  return texts.map((text) => text.slice(0, MAX_MESSAGE_CHARS)).join(' ');
}

/** Joins texts. When the result has more than `maxChars` characters, only its beginning and its end are kept. */
export function joinedWithin(texts: readonly string[], maxChars: number): string {
  const all = texts.filter((text) => text.trim() !== '').join('\n');
  if (all.length <= maxChars) return all;
  const half = Math.floor(maxChars / 2);
  return `${all.slice(0, half)}\n${all.slice(all.length - half)}`;
}

/**
 * Returns the words of a text in lower case, separated by spaces. Only letters and digits are parts of words. Stores contain the result, so the
 * words of a text must stay the same.
 */
export function wordsOf(text: string): string {
  return lowerCaseWords(text.normalize('NFKC'))
    .filter((word) => word.length <= MAX_WORD_CHARS)
    .join(' ');
}

/**
 * Returns the phrases of a search. A session is found if it has all of them. Each word is a phrase, and so are the words between double
 * quotes, one after the other. Empty for a text without letters and digits.
 */
export function phrasesOf(search: string): string[] {
  const phrases = search.split('"').flatMap((part, index) => {
    const words = wordsOf(part);
    return index % 2 === 1 ? [words] : words.split(' ');
  });
  return [...new Set(phrases.filter((phrase) => phrase !== ''))].slice(0, MAX_PHRASES);
}
