import type { Command } from 'commander';
import { floeProblems } from './command-lines.ts';
import type { Finding } from './finding.ts';
import { type Sentence, sentencesOf } from './sentences.ts';

/** A kind of things that have names in the program, such as evaluators. */
export type NamedKind = {
  /** What the pages call it, as a regular expression. */
  readonly noun: string;
  readonly names: readonly string[];
};

/** Names of examples, which readers replace by their own. */
const EXAMPLES = new Set(['acme', 'last_turns', 'my_harness', 'my_evaluator']);

/**
 * Checks the names that a page mentions in code font next to a noun, such as "the evaluator `swebench`" or "harnesses `pi` and `codex`", and
 * the command lines in code font that begin with `floe`. Reports names and options that the program does not have.
 */
export function checkNames(
  page: string,
  markdown: string,
  kinds: readonly NamedKind[],
  program: Command,
): readonly Finding[] {
  return sentencesOf(markdown).flatMap((sentence) => [
    ...kinds
      .flatMap((kind) => namesIn(sentence, kind))
      .map((problem) => ({ where: `${page}:${sentence.line}`, problem })),
    ...commandsIn(sentence, program).map((problem) => ({ where: `${page}:${sentence.line}`, problem })),
  ]);
}

function namesIn({ text }: Sentence, { noun, names }: NamedKind): string[] {
  const list = '`[a-z][\\w-]*`(?:(?:,| and| or|, and|, or) `[a-z][\\w-]*`)*';
  const pattern = new RegExp(`\\b${noun} (${list})(?! [a-z]+ of\\b)`, 'gi');
  return [...text.matchAll(pattern)]
    .flatMap(([, found = '']) => found.match(/[\w-]+(?=`(?:,| and| or|$))/g) ?? [])
    .filter((name) => !names.includes(name) && !EXAMPLES.has(name))
    .map((name) => `the program has no ${noun.replaceAll(/[^a-z ]/g, '')} ${name}; there are ${names.join(', ')}`);
}

function commandsIn({ text }: Sentence, program: Command): string[] {
  return [...text.matchAll(/`floe ([a-z][^`]*)`/g)].flatMap(([, line = '']) => {
    const words = line.split(' ').map((word) => word.replaceAll(/[[\]…]/g, ''));
    return floeProblems(
      words.filter((word) => word !== ''),
      program,
    );
  });
}
