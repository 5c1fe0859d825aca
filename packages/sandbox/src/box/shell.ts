import { ToolError } from '../api/tools.ts';
import type { Dialect } from './interpreter.ts';
import { findProgram, type ProcessSettings } from './programs.ts';

/**
 * File descriptors of a shell that commands do not get: the control stream, stdout and stderr. bash can use numbers that are higher than
 * scripts use. Other shells have only descriptors up to 9.
 */
const BASH_DESCRIPTORS = { control: 97, stdout: 98, stderr: 99 };
const SH_DESCRIPTORS = { control: 7, stdout: 8, stderr: 9 };
/** Options of an interactive bash. Only an interactive shell returns to its input after SIGINT and after a syntax error. */
const BASH_FLAGS = ['--norc', '--noprofile', '--noediting', '-i'];

/** Returns the dialect of a shell. With `isTerminal`, its commands have a terminal. Throws a {@link ToolError} when the shell cannot be run. */
export function shellDialect(settings: ProcessSettings, isTerminal: boolean): Dialect {
  const { env } = settings;
  const path = findProgram(['bash', 'sh'], env, settings.cwd);
  const isBash = /(^|\/)bash$/.test(path);
  const argv = isBash ? [path, ...BASH_FLAGS] : [path, '-i'];
  const numbers = isBash ? BASH_DESCRIPTORS : SH_DESCRIPTORS;
  const print = isBash ? 'builtin printf' : 'command printf';
  const { control, stdout, stderr } = numbers;
  const [input, closed] = isTerminal
    ? ['/dev/tty', `${control}>&- ${stdout}>&-`]
    : ['/dev/null', `${control}>&- ${stdout}>&- ${stderr}>&-`];
  const setUp = [
    `exec ${control}>&3 ${stdout}>&1 ${stderr}>&2 3>&-`,
    'PS1= PS2=',
    ...(isBash ? ['unset HISTFILE', 'set +o history +H'] : []),
    ...(isTerminal ? ['stty -echo -onlcr </dev/tty'] : []),
  ];
  return {
    ...settings,
    argv: [...settings.prefix, ...(isTerminal ? terminalArgv(argv, settings) : argv)],
    env: { ...env, ...settings.marks, PS1: '', PS2: '' },
    isTerminal,
    readsControl: isTerminal,
    readsAhead: !isBash,
    maxDetailBytes: 0,
    setUp: Buffer.from(`${setUp.join('; ')}\n`),
    begin(nonce, code, lastExitCode) {
      // As in a terminal, `$?` has the exit code of the last run's command.
      const status = lastExitCode === 0 ? '' : `(exit ${lastExitCode}); `;
      const start = `${print} 'A ${nonce}\\n' >&${control}; ${status}`;
      return Buffer.concat([
        Buffer.from(`${start}eval '`),
        betweenQuotes(code),
        Buffer.from(`' <${input} ${closed}\n`),
      ]);
    },
    finish(nonce) {
      const marks = isTerminal ? [stdout] : [stdout, stderr];
      const parts = [
        `${print} 'E ${nonce} %d 0\\n' "$?" >&${control}`,
        ...marks.map((number) => `${print} '\\036${nonce}' >&${number}`),
        // The output would otherwise contain a prompt that a command has set, such as the prompt of a virtual environment.
        'PS1= PS2=',
      ];
      return Buffer.from(`{ ${parts.join('; ')}; } 2>/dev/null\n`);
    },
  };
}

/** Returns the command line of a shell in a terminal. `script` makes the terminal, because Node cannot. */
function terminalArgv(argv: readonly string[], { env, cwd }: ProcessSettings): string[] {
  let script: string;
  try {
    script = findProgram(['script'], env, cwd);
  } catch {
    throw new ToolError(
      'unavailable',
      'a shell with a terminal needs the program "script" of util-linux in the sandbox',
    );
  }
  return [script, '-qfec', `exec ${argv.join(' ')} <&3`, '/dev/null'];
}

/** Returns a command with its quotes escaped, for use between single quotes. */
function betweenQuotes(code: Buffer): Buffer {
  return Buffer.from(code.toString('latin1').replaceAll("'", `'\\''`), 'latin1');
}
