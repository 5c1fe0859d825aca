/** English words that are in nearly every text, so that they distinguish no documents and only cost time. */
const STOP_WORDS: ReadonlySet<string> = new Set(
  `a about after all also an and any are as at be because been before but by can could did do does for from had has have he her his how i if
  in into is it its just me more most my no not of on one or other our out over she so some such than that the their them then there these
  they this those to up was we were what when where which while who whose why will with would you your`.split(/\s+/),
);

/** Maximum number of distinct words of a query that are searched. */
const MAX_WORDS = 32;

/** Returns the distinct words of a text in lower case: runs of letters, digits and marks. */
export function wordsOf(text: string): string[] {
  return [...new Set(text.toLowerCase().match(/[\p{L}\p{N}\p{M}]+/gu))];
}

/** Returns the words of a query that are searched. Words such as `the` are left out where others are there. */
export function queryWords(query: string): string[] {
  const words = wordsOf(query);
  const rare = words.filter((word) => !STOP_WORDS.has(word));
  return (rare.length === 0 ? words : rare).slice(0, MAX_WORDS);
}
