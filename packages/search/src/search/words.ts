import { lowerCaseWords } from '@floe-rl/core';

/** English words that are in nearly every text, so that they distinguish no documents and only cost time. */
const STOP_WORDS: ReadonlySet<string> = new Set(
  `a about after all also an and any are as at be because been before but by can could did do does for from had has have he her his how i if
  in into is it its just me more most my no not of on one or other our out over she so some such than that the their them then there these
  they this those to up was we were what when where which while who whose why will with would you your`.split(/\s+/),
);

/** Maximum number of distinct words of a query that are searched. */
const MAX_WORDS = 32;

/** Returns the distinct words of a text in lower case: runs of letters, digits and marks. */
export function distinctWords(text: string): string[] {
  return [...new Set(lowerCaseWords(text, { marks: true }))];
}

/**
 * Returns a text of code with the words of its names apart: `readFile` becomes `read File`, and `read_file` `read file`. Indexes of code contain
 * the result, so a change of it needs another format of these indexes.
 */
export function splitNames(code: string): string {
  return code.replace(/([a-z0-9])([A-Z])/g, '$1 $2').replaceAll('_', ' ');
}

/**
 * Returns the words of a query that are searched. Words such as `the` are left out unless the query has no others. The words of a query about
 * code are made by {@link splitNames}.
 */
export function queryWords(query: string): string[] {
  const words = distinctWords(query);
  const rare = words.filter((word) => !STOP_WORDS.has(word));
  return (rare.length === 0 ? words : rare).slice(0, MAX_WORDS);
}
