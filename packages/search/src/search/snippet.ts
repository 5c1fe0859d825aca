import { distinctWords } from './words.ts';

/** Length of a snippet in characters. */
const SNIPPET_CHARS = 320;
/** Number of characters of a snippet before the first matching word. */
const LEAD_CHARS = 60;
/** Number of characters at the beginning of a word that must match, so that `running` matches `runs`. */
const STEM_CHARS = 5;
/** Maximum number of positions that are tried as the beginning of a snippet. */
const MAX_POSITIONS = 200;

/** Returns the part of `text` that contains the most words of the query, in one line. */
export function snippetOf(text: string, query: string): string {
  const stems = distinctWords(query).map((word) => word.slice(0, STEM_CHARS));
  const lower = text.toLowerCase();
  const found = positionsOf(lower, stems);
  let best = 0;
  let bestCount = -1;
  for (const { at } of found) {
    const inside = found.filter((other) => other.at >= at && other.at < at + SNIPPET_CHARS - LEAD_CHARS);
    const count = new Set(inside.map(({ stem }) => stem)).size;
    if (count > bestCount) {
      best = at;
      bestCount = count;
    }
  }
  // Some letters become longer in lower case, so the position may be after the end of `text`.
  return cut(text, Math.max(0, Math.min(best - LEAD_CHARS, text.length - SNIPPET_CHARS)));
}

function positionsOf(lower: string, stems: readonly string[]): { readonly at: number; readonly stem: string }[] {
  const found: { at: number; stem: string }[] = [];
  for (const stem of stems) {
    const share = Math.ceil(MAX_POSITIONS / stems.length);
    for (let at = lower.indexOf(stem), count = 0; at >= 0 && count < share; at = lower.indexOf(stem, at + 1), count++) {
      found.push({ at, stem });
    }
  }
  return found.sort((a, b) => a.at - b.at);
}

/** Cuts the text between words, and inserts an ellipsis where text is left out. */
function cut(text: string, start: number): string {
  const from = start === 0 ? 0 : boundaryAfter(text, start);
  const end = from + SNIPPET_CHARS >= text.length ? text.length : boundaryBefore(text, from + SNIPPET_CHARS, from);
  const inner = text.slice(from, end).replace(/\s+/g, ' ').trim();
  return `${from > 0 ? '… ' : ''}${inner}${end < text.length ? ' …' : ''}`;
}

function boundaryAfter(text: string, start: number): number {
  const space = text.slice(start, start + LEAD_CHARS).search(/\s/);
  return space < 0 ? safeCut(text, start) : start + space;
}

function boundaryBefore(text: string, end: number, start: number): number {
  const space = text.lastIndexOf(' ', end);
  return space > start + SNIPPET_CHARS / 2 ? space : safeCut(text, end);
}

/** Returns a position near `at` that does not split a surrogate pair. */
export function safeCut(text: string, at: number): number {
  const code = text.charCodeAt(at);
  return code >= 0xdc00 && code <= 0xdfff ? at - 1 : at;
}
