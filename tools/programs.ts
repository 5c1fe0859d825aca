import { FloeError } from '@floe-rl/core';

/** A program that `npm run verify` or `npm run bench` starts by its name. */
export type Program = {
  /** One-line description of the program, which is printed in the list of programs. */
  readonly summary: string;
  /** Loads the program's module, which starts the program with `process.argv.slice(2)` as its arguments. */
  readonly load: () => Promise<unknown>;
  /** Programs that have a subject in common. The program runs them all, and each can also be started by its own name. */
  readonly parts?: Readonly<Record<string, Program>>;
};

type Programs = Readonly<Record<string, Program>>;

/**
 * Runs the program that the first argument names, and removes this name from `process.argv`. Without a name, it lists all programs and exits
 * with 0. For an unknown name, it prints the nearest name and all names on stderr and exits with 2. After an option with a wrong value, it
 * also exits with 2.
 */
export async function runNamed(command: string, programs: Programs): Promise<void> {
  const [node = process.execPath, main = command, name, ...args] = process.argv;
  if (name === undefined || name === '--help' || name === '-h') {
    console.log(listOf(command, programs));
    return;
  }
  const known = new Map(
    Object.entries(programs).flatMap(([own, program]) => [[own, program] as const, ...partsOf(program)]),
  );
  const program = known.get(name);
  if (program === undefined) {
    const nearest = nearestName(name, [...known.keys()]);
    const all = [...known.keys()].join(', ');
    console.error(
      `npm run ${command}: there is no "${name}"; the nearest name is "${nearest}", and "npm run ${command}" describes these: ${all}`,
    );
    process.exitCode = 2;
    return;
  }
  process.argv = [node, main, ...args];
  try {
    await program.load();
  } catch (thrown) {
    // A wrong value of an option is the user's mistake, so a stack trace would not help.
    if (!FloeError.is(thrown) || thrown.code !== 'bad_request') throw thrown;
    console.error(thrown.message);
    process.exitCode = 2;
  }
}

/** Returns the name that needs the fewest changes of one letter to become `name`. */
export function nearestName(name: string, known: readonly string[]): string {
  const sorted = known.toSorted((a, b) => distance(name, a) - distance(name, b));
  return sorted[0] ?? '';
}

/** Returns the number of letters that must be inserted, removed or replaced to make one text of the other. */
function distance(from: string, to: string): number {
  let row = Array.from({ length: to.length + 1 }, (_, index) => index);
  for (const [index, letter] of [...from].entries()) {
    const next = [index + 1];
    for (const [column, other] of [...to].entries()) {
      const replaced = (row[column] ?? 0) + (letter === other ? 0 : 1);
      next.push(Math.min(replaced, (next[column] ?? 0) + 1, (row[column + 1] ?? 0) + 1));
    }
    row = next;
  }
  return row[to.length] ?? 0;
}

function partsOf({ parts = {} }: Program): (readonly [string, Program])[] {
  return Object.entries(parts);
}

function listOf(command: string, programs: Programs): string {
  const rows = Object.entries(programs).flatMap(([name, program]) => [
    [`  ${name}`, program.summary] as const,
    ...partsOf(program).map(([part, { summary }]) => [`    ${part}`, summary] as const),
  ]);
  const width = Math.max(...rows.map(([name]) => name.length));
  const lines = rows.map(([name, summary]) => `${name.padEnd(width)}  ${summary}`);
  return `usage: npm run ${command} -- NAME [OPTION…]\n\n${lines.join('\n')}`;
}
