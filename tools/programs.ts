import { FloeError } from '@floe-rl/core';

/** A program that `npm run verify` or `npm run bench` starts by its name. */
export type Program = {
  /** One-line description of the program, which is printed in the list of programs. */
  readonly summary: string;
  /** Loads the program's module, which starts the program with `process.argv.slice(2)` as its arguments. */
  readonly load: () => Promise<unknown>;
};

/**
 * Runs the program that the first argument names, and removes this name from `process.argv`. Without a name, it lists all programs and
 * exits with 0. For an unknown name, it prints one line with all names on stderr and exits with 2, as it does after an option with a wrong value.
 */
export async function runNamed(command: string, programs: Readonly<Record<string, Program>>): Promise<void> {
  const [node = process.execPath, main = command, name, ...args] = process.argv;
  if (name === undefined || name === '--help' || name === '-h') {
    console.log(listOf(command, programs));
    return;
  }
  const program = Object.hasOwn(programs, name) ? programs[name] : undefined;
  if (program === undefined) {
    const known = Object.keys(programs).join(', ');
    console.error(`npm run ${command}: there is no "${name}"; "npm run ${command}" describes these: ${known}`);
    process.exitCode = 2;
    return;
  }
  process.argv = [node, main, ...args];
  try {
    await program.load();
  } catch (thrown) {
    // An option with a wrong value is the user's mistake, for which a stack trace would be no help.
    if (!FloeError.is(thrown) || thrown.code !== 'bad_request') throw thrown;
    console.error(thrown.message);
    process.exitCode = 2;
  }
}

function listOf(command: string, programs: Readonly<Record<string, Program>>): string {
  const names = Object.keys(programs);
  const width = Math.max(...names.map((name) => name.length));
  const lines = Object.entries(programs).map(([name, { summary }]) => `  ${name.padEnd(width)}  ${summary}`);
  return `usage: npm run ${command} -- NAME [OPTION…]\n\n${lines.join('\n')}`;
}
