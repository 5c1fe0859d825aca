import type { Command } from 'commander';
import type { Block } from '../pages/blocks.ts';
import type { Finding } from './finding.ts';

/** Names of the programs of `npm run verify` and `npm run bench`. */
export type ProgramNames = { readonly verify: ReadonlySet<string>; readonly bench: ReadonlySet<string> };

/**
 * Checks the command lines of a block without running them: that `floe` has the command and its options, and that the programs of
 * `npm run verify` and `npm run bench` exist. This also covers blocks that cannot be run.
 */
export function checkCommandLines(block: Block, program: Command, names: ProgramNames): Finding[] {
  return joinedLines(block.text).flatMap(({ line, offset }) => {
    const where = `${block.page}:${block.line + 1 + offset}`;
    const problems = commandsIn(line).flatMap((words) => problemsOf(words, program, names));
    return problems.map((problem) => ({ where, problem }));
  });
}

/** Whether all commands of a block start programs of `npm run verify` or `npm run bench`, which run for minutes and have their own results. */
export function startsPrograms({ text }: Block): boolean {
  return joinedLines(text).every(({ line }) => /^npm run (?:verify|bench)\b/.test(line));
}

function problemsOf(words: readonly string[], program: Command, names: ProgramNames): string[] {
  const start = words.indexOf('floe');
  if (start === 0 || (start > 0 && words[start - 1] === 'npx')) return floeProblems(words.slice(start + 1), program);
  if (words[0] !== 'npm' || words[1] !== 'run') return [];
  const [, , kind, , name] = words;
  if ((kind !== 'verify' && kind !== 'bench') || name === undefined || names[kind].has(name)) return [];
  return [`npm run ${kind} has no program ${name}`];
}

/** Returns what is wrong with the words of a command line after `floe`: a command or an option that the program does not have. */
export function floeProblems(words: readonly string[], program: Command): string[] {
  let command = program;
  let index = 0;
  for (; index < words.length; index++) {
    const next = command.commands.find((one) => one.name() === words[index]);
    if (next === undefined) break;
    command = next;
  }
  if (command === program) return [`floe has no command ${words[0] ?? ''}`];
  const ofCommand = [...command.options, ...(command.parent?.options ?? [])];
  return words
    .slice(index)
    .filter((word) => word.startsWith('--') && word !== '--')
    .map((word) => word.split('=')[0] ?? word)
    .filter((word) => word !== '--help' && !ofCommand.some(({ long }) => long === word))
    .map((word) => `floe ${words.slice(0, index).join(' ')} has no option ${word}`);
}

/** Returns the lines of a script with continued lines joined, without comments, empty lines and the content of here-documents. */
function joinedLines(script: string): { line: string; offset: number }[] {
  const joined: { line: string; offset: number }[] = [];
  let hereEnd: string | null = null;
  let isContinued = false;
  for (const [offset, text] of script.split('\n').entries()) {
    if (hereEnd !== null) {
      if (text.trim() === hereEnd) hereEnd = null;
      continue;
    }
    const last = joined.at(-1);
    if (isContinued && last !== undefined) last.line += ` ${text.replace(/\\$/, '').trim()}`;
    else joined.push({ line: text.replace(/\\$/, '').trim(), offset });
    isContinued = text.endsWith('\\');
    hereEnd = /<<-?\s*'?(\w+)'?/.exec(text)?.[1] ?? null;
  }
  return joined.filter(({ line }) => line !== '' && !line.startsWith('#'));
}

/** Splits a line of a script into its commands and their words. Quoted texts are one word, and redirections are not separated. */
function commandsIn(line: string): string[][] {
  const commands: string[][] = [[]];
  for (const [word] of line.matchAll(/(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"|;&\\])+|\|\|?|&&?|;/g)) {
    if (word.startsWith('#')) break;
    if (/^(?:\|\|?|&&?|;)$/.test(word)) commands.push([]);
    else commands.at(-1)?.push(word);
  }
  return commands.map((words) => words.filter((word, index) => index > 0 || !/^\w+=/.test(word)));
}
