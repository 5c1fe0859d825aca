import { safeCut } from './snippet.ts';

/** Maximum length of a passage in characters. Paragraphs are joined up to this length. */
export const PASSAGE_CHARS = 1_600;

/**
 * Cuts a text into passages of at most {@link PASSAGE_CHARS} characters. Joined, the passages are the text. Cuts between paragraphs where
 * possible, else between lines, sentences or words.
 */
export function passagesOf(text: string): string[] {
  const passages: string[] = [];
  let start = 0;
  while (text.length - start > PASSAGE_CHARS) {
    const end = start + endOfPassage(text.slice(start, start + PASSAGE_CHARS));
    passages.push(text.slice(start, end));
    start = end;
  }
  if (start < text.length || passages.length === 0) passages.push(text.slice(start));
  return passages;
}

/** Returns the length of the first passage of `text`, at least half the length of `text`. */
function endOfPassage(text: string): number {
  for (const separator of ['\n\n', '\n', '. ', ' ']) {
    const at = text.lastIndexOf(separator);
    if (at >= text.length / 2) return at + separator.length;
  }
  return safeCut(text, text.length - 1);
}
