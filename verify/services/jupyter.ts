import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { cacheDir } from '#floe/commands/cache-dir';
import { venvWith } from './venv.ts';

const PACKAGES = ['ipython==9.18.1', 'ipykernel==7.4.0', 'jupyter_client==8.10.0'];
const FOLDER = join(cacheDir(), 'jupyter');
/** File that exists when all packages are installed. */
const STAMP = join(FOLDER, PACKAGES.join('_'));

/** Returns the path of a Python with IPython and Jupyter's kernel, which `npm run verify -- install` installed; `null` when there is none. */
export function jupyterPython(): string | null {
  return existsSync(STAMP) ? join(FOLDER, 'bin', 'python') : null;
}

/** Installs a Python with IPython and Jupyter's kernel unless it is installed already, and returns its path. */
export function installJupyter(): string {
  const { python } = venvWith(FOLDER, [PACKAGES]);
  writeFileSync(STAMP, '');
  return python;
}
