// Installs the packages of NeMo Gym, verifiers and OpenEnv from PyPI, at fixed versions, into one virtual environment for each.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { run, venvAt } from '../services/venv.ts';

/** Folder of the environments: `$FLOE_REGISTRATIONS_HOME`, else a folder in the user's cache directory. */
const HOME = process.env.FLOE_REGISTRATIONS_HOME ?? join(homedir(), '.cache', 'floe', 'registrations');

const UV = 'uv==0.13.9';
/** NeMo Gym needs 3.12; its versions after 0.4.0 need 3.13.14. */
const PYTHON = '3.12';

/** The command that installs everything that the program needs. */
export const INSTALL_COMMAND = 'npm run verify -- registrations --install';

/** Returns the Python program of an environment; `null` when the environment is not installed with the given packages. */
export function installedPython(name: string, packages: readonly string[]): string | null {
  const { python, stamp } = pathsOf(name);
  return existsSync(stamp) && readFileSync(stamp, 'utf8') === contentsOf(packages) ? python : null;
}

/** Installs an environment, unless it is installed. Throws an Error that names the command that failed. */
export function installEnvironment(name: string, packages: readonly string[]): void {
  if (installedPython(name, packages) !== null) return;
  mkdirSync(HOME, { recursive: true });
  const uv = join(HOME, 'uv', 'bin', 'uv');
  if (!existsSync(uv)) venvAt(join(HOME, 'uv')).pip('install', '-q', UV);
  const { folder, python, stamp } = pathsOf(name);
  rmSync(folder, { recursive: true, force: true });
  run(uv, ['venv', '-q', '-p', findPython(), folder]);
  run(uv, ['pip', 'install', '-q', '-p', python, ...packages]);
  writeFileSync(stamp, contentsOf(packages));
}

function pathsOf(name: string): { readonly folder: string; readonly python: string; readonly stamp: string } {
  const folder = join(HOME, name);
  return { folder, python: join(folder, 'bin', 'python'), stamp: join(folder, 'installed') };
}

function contentsOf(packages: readonly string[]): string {
  return JSON.stringify([PYTHON, ...packages]);
}

/** Returns the program of Python: on the PATH, or of pyenv, whose program on the PATH does not run unless the version is selected. */
function findPython(): string {
  const versions = join(homedir(), '.pyenv', 'versions');
  const ofPyenv = existsSync(versions) ? readdirSync(versions).filter((name) => name.startsWith(`${PYTHON}.`)) : [];
  const candidates = [`python${PYTHON}`, ...ofPyenv.map((version) => join(versions, version, 'bin', 'python3'))];
  const found = candidates.find((program) => spawnSync(program, ['--version']).status === 0);
  if (found === undefined) throw new Error(`Python ${PYTHON} is missing; install it, for instance with pyenv`);
  return found;
}
