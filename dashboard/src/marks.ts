import { lowerCaseWords } from '@floe-rl/core/protocol';

/** A part of a text, and whether it is marked. */
export type MarkedPart = { readonly text: string; readonly isMarked: boolean };

/** Maximum number of places that are marked in one text, so that a long text with a frequent word is drawn quickly. */
const MAX_MARKS = 500;

/** Divides a text at the words of a search, whatever their case. Words are letters and digits, as the search of the server has them. */
export function markedParts(text: string, search: string): MarkedPart[] {
  const words = [...new Set(lowerCaseWords(search))];
  if (words.length === 0) return [{ text, isMarked: false }];
  const pattern = new RegExp(`(?<![\\p{L}\\p{N}])(?:${words.join('|')})(?![\\p{L}\\p{N}])`, 'giu');
  const parts: MarkedPart[] = [];
  let end = 0;
  for (const { 0: found, index } of text.matchAll(pattern)) {
    if (parts.length >= 2 * MAX_MARKS) break;
    if (index > end) parts.push({ text: text.slice(end, index), isMarked: false });
    parts.push({ text: found, isMarked: true });
    end = index + found.length;
  }
  if (end < text.length) parts.push({ text: text.slice(end), isMarked: false });
  return parts;
}
