import { assetPath } from '@floe-rl/core';
import { pythonPath } from './catalog.ts';
import { type LockedHarness, lockedStatus } from './install.ts';

/** The Python package that compares expressions for the evaluator `answer`. It is installed like a harness, in the same directory. */
export const MATH_VERIFY: LockedHarness = {
  name: 'math_verify',
  install: {
    version: '0.9.0',
    source: 'pip',
    diskMb: 130,
    nodeVersion: null,
    // The package has no program of its own. This program belongs to sympy, which the package depends on.
    program: 'venv/bin/isympy',
    warmUp: ['--help'],
  },
  lockDir: assetPath(import.meta.url, 'evaluator-locks/math_verify'),
};

/** Returns the path of the Python interpreter of an installed math-verify; `null` when it is not installed. */
export async function mathVerifyPython(cacheDir: string): Promise<string | null> {
  const { path } = await lockedStatus(MATH_VERIFY, cacheDir);
  return path === null ? null : pythonPath(path);
}
