import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { GIB } from '@floe-rl/core';

/** Maximum number of lines from the end of a failed command's output that the error message quotes. */
const QUOTED_LINES = 8;

/** Runs a command and returns its standard output. Throws an Error with the last lines of its output when it fails. */
export function run(command: string, args: readonly string[]): string {
  const { error, status, stdout, stderr } = spawnSync(command, args, { encoding: 'utf8', maxBuffer: GIB / 4 });
  if (status === 0) return stdout;
  const output = `${stdout ?? ''}${stderr ?? ''}`.trim().split('\n').slice(-QUOTED_LINES).join('\n');
  throw new Error(`${command} ${args.slice(0, 3).join(' ')}: ${error?.message ?? `exit ${status}`}\n${output}`);
}

export type Venv = { readonly dir: string; readonly python: string; pip(...args: readonly string[]): void };

/** Returns the Python virtual environment in a folder, and creates it with the program `interpreter` when it does not exist. */
export function venvAt(dir: string, interpreter = 'python3'): Venv {
  if (!existsSync(join(dir, 'bin', 'pip'))) run(interpreter, ['-m', 'venv', dir]);
  return { dir, python: join(dir, 'bin', 'python'), pip: (...args) => void run(join(dir, 'bin', 'pip'), args) };
}

/**
 * Returns the virtual environment in a folder, and installs packages of PyPI into it unless they are installed. Each list in `installs` has
 * the arguments of one call of `pip install`.
 */
export function venvWith(dir: string, installs: readonly (readonly string[])[], interpreter = 'python3'): Venv {
  const venv = venvAt(dir, interpreter);
  const stamp = join(dir, 'installed');
  const contents = JSON.stringify(installs);
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === contents) return venv;
  for (const packages of installs) venv.pip('install', '-q', '--disable-pip-version-check', ...packages);
  writeFileSync(stamp, contents);
  return venv;
}

/**
 * Returns a Python program of version 3.`minMinor` to 3.`maxMinor` from the PATH or from pyenv. Throws an Error that states how to install
 * such a version.
 */
export function findPython(minMinor: number, maxMinor: number): string {
  const versions = Array.from({ length: maxMinor - minMinor + 1 }, (_, index) => `python3.${minMinor + index}`);
  const pyenv = join(process.env.PYENV_ROOT ?? join(homedir(), '.pyenv'), 'versions');
  const installed = existsSync(pyenv) ? readdirSync(pyenv).map((name) => join(pyenv, name, 'bin', 'python3')) : [];
  for (const program of ['python3', ...versions, ...installed]) {
    const { status, stdout } = spawnSync(program, ['-c', 'import sys; print(sys.version_info.minor)'], {
      encoding: 'utf8',
    });
    const minor = Number(stdout);
    if (status === 0 && minor >= minMinor && minor <= maxMinor) return program;
  }
  const range = `3.${minMinor} to 3.${maxMinor}`;
  throw new Error(`Python ${range} is missing; install it, for example with: pyenv install 3.${minMinor}`);
}
