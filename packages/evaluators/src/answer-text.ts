/** Maximum number of characters of an agent's text, taken from its end, that are searched for an answer. */
export const MAX_TEXT_CHARS = 64 * 1024;

/** A LaTeX command with braces around a text. The command does not change the meaning of the text. */
const TEXT_COMMAND = /^\\(?:text|textbf|textit|mathrm|mathbf|mbox)\{([^{}]*)\}$/;
/** Characters around the letter of a choice. */
const AROUND: ReadonlySet<string> = new Set(' \t\r\n*_`$()[]"\'.:,;');
/** The letter of a choice after the word answer, choice or option. */
const NAMED_CHOICE =
  /\b(?:[Aa]nswer|ANSWER|[Cc]hoice|[Oo]ption)(?: is|:| is:)?[^A-Za-z0-9\n]{0,8}([A-Z])(?![A-Za-z0-9])/g;
/** The letter of a choice at the beginning of its text, as in `B) Paris`. */
const LEADING_CHOICE = /^\(?([A-Z])[).:]/;
const DELIMITERS = [
  ['$$', '$$'],
  ['$', '$'],
  ['\\(', '\\)'],
  ['\\[', '\\]'],
] as const;
const ARTICLES: ReadonlySet<string> = new Set(['a', 'an', 'the']);

/** Returns the letter of the choice that an answer names; `null` when it names no choice. */
export function choiceOf(answer: string): string | null {
  const bare = stripped(answer);
  const inner = stripped(TEXT_COMMAND.exec(bare)?.[1] ?? bare);
  if (/^[A-Za-z]$/.test(inner)) return inner.toUpperCase();
  const named = [...answer.matchAll(NAMED_CHOICE)].at(-1)?.[1];
  return named ?? LEADING_CHOICE.exec(inner)?.[1] ?? null;
}

/**
 * Returns a text without the characters of {@link AROUND} at its ends. The time is linear in the length of the text, which a regular
 * expression does not guarantee.
 */
function stripped(text: string): string {
  let [start, end] = [0, text.length];
  while (start < end && AROUND.has(text[start] as string)) start++;
  while (end > start && AROUND.has(text[end - 1] as string)) end--;
  return text.slice(start, end);
}

/** Returns an expression without the delimiters of mathematics around it: `$…$`, `$$…$$`, `\(…\)` or `\[…\]`. */
export function withoutDelimiters(expression: string): string {
  const text = expression.trim();
  for (const [open, close] of DELIMITERS) {
    if (text.length >= open.length + close.length && text.startsWith(open) && text.endsWith(close)) {
      return text.slice(open.length, text.length - close.length).trim();
    }
  }
  return text;
}

/** Returns a text with uniform white space and, with `ignoreCase`, in lower case, for comparison. */
export function normalText(text: string, ignoreCase: boolean): string {
  const joined = text.normalize('NFC').trim().replaceAll(/\s+/g, ' ');
  return ignoreCase ? joined.toLowerCase() : joined;
}

/**
 * Compares the words of an answer with the words of each expected text, as SQuAD does: without case, punctuation and English articles. Returns
 * the largest harmonic mean of precision and recall. It is 1 when neither text has a word.
 */
export function wordF1(answer: string, expected: readonly string[]): number {
  const given = wordsOf(answer);
  return Math.max(...expected.map((one) => f1Of(given, wordsOf(one))));
}

function f1Of(given: readonly string[], wanted: readonly string[]): number {
  if (given.length === 0 || wanted.length === 0) return given.length === wanted.length ? 1 : 0;
  const left = new Map<string, number>();
  for (const word of wanted) left.set(word, (left.get(word) ?? 0) + 1);
  let common = 0;
  for (const word of given) {
    const count = left.get(word) ?? 0;
    if (count === 0) continue;
    left.set(word, count - 1);
    common++;
  }
  return (2 * common) / (given.length + wanted.length);
}

function wordsOf(text: string): string[] {
  const words = text
    .normalize('NFC')
    .toLowerCase()
    .replaceAll(/[\p{P}\p{S}]/gu, '')
    .split(/\s+/);
  return words.filter((word) => word !== '' && !ARTICLES.has(word));
}
