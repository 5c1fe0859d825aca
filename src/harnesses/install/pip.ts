import { readdir, realpath } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeError } from '../../core/errors.ts';
import { pythonPath } from './catalog.ts';
import { runTool } from './run-tool.ts';

/** Oldest version of Python for which the locks are valid. */
const MIN_PYTHON = [3, 10] as const;
/** Directory of the host's programs that every sandbox can read. */
const SYSTEM_BIN = '/usr/bin';
const REMEDY = 'on Debian and Ubuntu: apt install python3-venv';

/**
 * Arguments with which Python installs exactly the packages in the lock, from wheels only, because building from source runs a package's
 * code. Compilation is a separate step, {@link COMPILE}.
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
 * Arguments with which Python compiles all modules, because a sandbox cannot write to the installation. Python uses the result without
 * comparing the times of source files, which a file system may change.
 */
const COMPILE = ['-m', 'compileall', '-q', '--invalidation-mode', 'unchecked-hash'];

/**
 * Makes a virtual environment in `<dir>/venv` from `<dir>/requirements.txt`, for use after `dir` has been moved to `target`. Rejects
 * with `setup_failed` when there is no suitable Python or pip fails.
 */
export async function installWithPip(name: string, dir: string, target: string): Promise<void> {
  const python = await findPython(name);
  const env = { ...process.env, PYTHONDONTWRITEBYTECODE: '1' };
  const step = async (problem: string, argv: readonly string[]): Promise<void> => {
    const failure = await runTool(argv, { cwd: dir, env });
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

/** Finds a Python that sandboxes can read, too: one of the system's, not one that a version manager installed in a home directory. */
async function findPython(name: string): Promise<string> {
  for (const candidate of await candidatePythons()) {
    const check = `import sys, venv, ensurepip; sys.exit(sys.version_info < (${MIN_PYTHON.join(', ')}))`;
    if ((await runTool([candidate, '-c', check], { cwd: '/', env: {} })) === null) return candidate;
  }
  const version = MIN_PYTHON.join('.');
  throw new FloeError(
    'setup_failed',
    `${name} needs Python ${version} or newer in ${SYSTEM_BIN}, with its venv module; ${REMEDY}`,
    { harness: name },
  );
}

/**
 * Returns the real paths of the system's Pythons, the default one first. A real path continues to name the same version when the default
 * changes.
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
