import { Visitor } from 'oxc-parser';
import type { Problem, SourceFile } from './source.ts';

export type Word = {
  /** The banned word as CONTRIBUTING.md lists it; several words that share one entry are separated by commas. */
  readonly word: string;
  readonly pattern: RegExp;
  readonly instead: string;
};

/**
 * Words that are hard to understand for readers who do not know the project, each with the standard term to use instead. CONTRIBUTING.md
 * lists the same words with reasons.
 */
export const WORDS: readonly Word[] = [
  { word: 'anew', pattern: /\banew\b/i, instead: 'retry, restart, re-…' },
  { word: 'behind', pattern: /\bbehind\b(?! (a|an|the|its|one|any|another|some)\b)/i, instead: 'after' },
  { word: 'deaf', pattern: /\bdeaf\b/i, instead: 'unresponsive' },
  { word: 'for ever', pattern: /\bfor ever\b/i, instead: 'indefinitely' },
  { word: 'go on', pattern: /\b(go|goes|going|gone|went) on\b(?! (a|an|the|its|to)\b)/i, instead: 'continue, resume' },
  { word: 'let go of', pattern: /\blet(s|ting)? go of\b/i, instead: 'drop, release' },
  { word: 'look again', pattern: /\blook(s|ed|ing)? (again|anew|at)\b/i, instead: 'check, poll, read' },
  {
    word: 'nobody, somebody, whoever',
    pattern: /\b(nobody|somebody|whoever|whom)\b/i,
    instead: 'the caller, client or process',
  },
  { word: 'told, tells', pattern: /\b(told|tells)\b(?! apart)/i, instead: 'reports, returns, sends, logs' },
];

/** Matches the comment before a quoted string, such as a prompt for a model. floe did not choose the words of such a string. */
const QUOTATION = /\/\/ words: quoted$/;

/**
 * Reports banned words in comments, strings and template texts. In tests only comments are checked, because their strings are often data. A
 * string is skipped when the line above it is the comment `// words: quoted`.
 */
export function checkWords(file: SourceFile): Problem[] {
  const lines = file.text.split('\n');
  const isQuoted = (start: number): boolean => QUOTATION.test(lines[file.lineAt(start) - 2] ?? '');
  const texts = file.comments.map(({ value, start }) => ({ value, start }));
  if (!/(^|\/)test\//.test(file.path)) {
    new Visitor({
      Literal: ({ value, start }) => {
        if (typeof value === 'string' && !isQuoted(start)) texts.push({ value, start });
      },
      TemplateElement: ({ value, start }) => {
        if (!isQuoted(start)) texts.push({ value: value.raw, start });
      },
    }).visit(file.program);
  }
  return texts.flatMap(({ value, start }) =>
    WORDS.flatMap(({ pattern, word, instead }) => {
      const found = pattern.exec(value.replaceAll('\n * ', '\n   ').replaceAll(/\s+/g, ' '));
      if (found === null) return [];
      return [{ path: file.path, line: file.lineAt(start), message: `"${found[0]}" (${word}): write ${instead}` }];
    }),
  );
}
