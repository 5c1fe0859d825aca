import { readdir, realpath } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeError } from '../../core/errors.ts';
import { pythonPath } from './catalog.ts';
import { runTool } from './run-tool.ts';

/** The locks are resolved for this version of Python and all newer ones. */
const MIN_PYTHON = [3, 10] as const;
/** The part of the host that every sandbox sees. */
const SYSTEM_BIN = '/usr/bin';
const REMEDY = 'on Debian and Ubuntu: apt install python3-venv';

/**
 * What is in the lock and nothing else. Wheels only: building one from source runs its code. Python compiles the modules
 * below, since a sandbox could not keep what it compiles.
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

/** Python trusts these without a look at the sources, so that what file systems do to times does not matter. */
const COMPILE = ['-m', 'compileall', '-q', '--invalidation-mode', 'unchecked-hash'];

/**
 * Makes a virtual environment in `<dir>/venv` from `<dir>/requirements.txt`. It is to work at `target`, where it will be
 * moved. Rejects with `setup_failed` when there is no Python for it or pip fails.
 */
export async function installWithPip(name: string, dir: string, target: string): Promise<void> {
  const python = await findPython(name);
  const env = { ...process.env, PYTHONDONTWRITEBYTECODE: '1' };
  const step = async (what: string, argv: readonly string[]): Promise<void> => {
    const failure = await runTool(argv, { cwd: dir, env });
    if (failure === null) return;
    throw new FloeError('setup_failed', `${what} for ${name}: ${failure.why}`, { harness: name }, failure.cause);
  };
  const own = pythonPath(dir);
  await step(`${python} could not make a virtual environment (${REMEDY})`, [python, '-m', 'venv', join(dir, 'venv')]);
  await step('pip could not install the packages', [own, ...PIP_INSTALL, '-r', join(dir, 'requirements.txt')]);
  await step('pip could not remove itself', [own, '-m', 'pip', 'uninstall', '--yes', '--quiet', 'setuptools', 'pip']);
  const compile = [own, ...COMPILE, '-s', dir, '-p', target, join(dir, 'venv', 'lib')];
  await step('the modules could not be compiled', compile);
}

/** A Python that sandboxes see too: one of the system's, not one that a version manager keeps in somebody's home. */
async function findPython(name: string): Promise<string> {
  for (const candidate of await candidates()) {
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

/** The system's own choice first; its real path, which keeps meaning the same version. */
async function candidates(): Promise<string[]> {
  const names = await readdir(SYSTEM_BIN).catch(() => []);
  const versioned = names.filter((name) => /^python3\.\d+$/.test(name)).sort();
  const found: string[] = [];
  for (const name of ['python3', ...versioned]) {
    const path = await realpath(join(SYSTEM_BIN, name)).catch(() => null);
    if (path !== null && !found.includes(path)) found.push(path);
  }
  return found;
}
