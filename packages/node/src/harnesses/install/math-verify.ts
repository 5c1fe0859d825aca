import { assetPath } from '@floe-rl/core';
import { pythonPath } from './catalog.ts';
import { type LockedHarness, lockedStatus } from './install.ts';

/** The Python package with which the evaluator `answer` compares expressions. It is installed like a harness, in the same directory. */
export const MATH_VERIFY: LockedHarness = {
  name: 'math_verify',
  install: {
    version: '0.9.0',
    source: 'pip',
    diskMb: 130,
    nodeVersion: null,
    // The package has no program of its own. This one belongs to sympy, which it is made with.
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
