import { readdir, realpath } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeError, runTool } from '@floe-rl/core';
import { pythonPath } from './catalog.ts';

/** Minimum version of Python, as major and minor number, for which the `requirements.txt` locks are valid. */
const MIN_PYTHON = [3, 10] as const;
/** Directory of the host's programs that every sandbox can read. Only a Python in this directory is used. */
const SYSTEM_BIN = '/usr/bin';
const REMEDY = 'on Debian and Ubuntu: apt install python3-venv';

/**
 * Python arguments that install exactly the packages of the lock. Only wheels are installed, because building from source would run a
 * package's code. A separate step, {@link COMPILE}, compiles the modules.
 */
const PIP_INSTALL = [
  '-m',
  'pip',
  'install',
  '--require-hashes',
  '--no-deps',
  '--only-binary=:all:',
  '--no-compile',
  '--no-input',
  '--disable-pip-version-check',
  '--quiet',
];

/**
 * Python arguments that compile all modules of an installation, because a sandbox cannot write to the installation. Python later uses the
 * compiled files without comparing the times of source files, which a file system may change.
 */
const COMPILE = ['-m', 'compileall', '-q', '--invalidation-mode', 'unchecked-hash'];

/**
 * Makes a virtual environment in `<dir>/venv` from `<dir>/requirements.txt`. It is made for use after `dir` has been moved to `target`.
 * Rejects with `setup_failed` when there is no suitable Python or pip fails.
 */
export async function installWithPip(name: string, dir: string, target: string, signal: AbortSignal): Promise<void> {
  const python = await findPython(name, dir, signal);
  const env = { ...process.env, PYTHONDONTWRITEBYTECODE: '1' };
  const step = async (problem: string, argv: readonly string[]): Promise<void> => {
    const failure = await runTool(argv, { cwd: dir, env, signal });
    if (failure === null) return;
    throw new FloeError('setup_failed', `${problem} for ${name}: ${failure.reason}`, { harness: name }, failure.cause);
  };
  const venvPython = pythonPath(dir);
  await step(`${python} could not make a virtual environment (${REMEDY})`, [python, '-m', 'venv', join(dir, 'venv')]);
  await step('pip could not install the packages', [venvPython, ...PIP_INSTALL, '-r', join(dir, 'requirements.txt')]);
  await step('pip could not remove itself', [
    venvPython,
    '-m',
    'pip',
    'uninstall',
    '--yes',
    '--quiet',
    'setuptools',
    'pip',
  ]);
  const compile = [venvPython, ...COMPILE, '-s', dir, '-p', target, join(dir, 'venv', 'lib')];
  await step('the modules could not be compiled', compile);
}

/**
 * Returns the path of a Python that sandboxes can also read. A Python of the system qualifies; a Python that a version manager installed in a
 * home directory does not.
 */
async function findPython(name: string, dir: string, signal: AbortSignal): Promise<string> {
  for (const candidate of await candidatePythons()) {
    const check = `import sys, venv, ensurepip; sys.exit(sys.version_info < (${MIN_PYTHON.join(', ')}))`;
    if ((await runTool([candidate, '-c', check], { cwd: dir, env: {}, signal })) === null) return candidate;
  }
  const version = MIN_PYTHON.join('.');
  throw new FloeError(
    'setup_failed',
    `${name} needs Python ${version} or newer in ${SYSTEM_BIN}, with its venv module; ${REMEDY}`,
    { harness: name },
  );
}

/**
 * Returns the real paths of the system's Python programs, the default one first. Unlike the link `python3`, a real path still means the
 * same version after the system's default has changed.
 */
async function candidatePythons(): Promise<string[]> {
  const names = await readdir(SYSTEM_BIN).catch(() => []);
  const versioned = names.filter((name) => /^python3\.\d+$/.test(name)).sort();
  const paths: string[] = [];
  for (const name of ['python3', ...versioned]) {
    const path = await realpath(join(SYSTEM_BIN, name)).catch(() => null);
    if (path !== null && !paths.includes(path)) paths.push(path);
  }
  return paths;
}
