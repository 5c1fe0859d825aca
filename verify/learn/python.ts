// The trainer of the example in Python, examples/learn-sim/learn.py, as a process.

import { homedir } from 'node:os';
import { join } from 'node:path';
import type { Step } from '../../examples/learn-sim/learn.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { Child } from '../runner/child.ts';
import { PYTHON_PACKAGE } from '../runner/floe.ts';
import { venvWith } from '../services/venv.ts';

const NUMPY = '2.3.4';
const HOME = join(homedir(), '.cache', 'floe', 'numpy', NUMPY);

/** Installs NumPy from PyPI, unless it is installed. Returns the Python program that can import it; `null` when it cannot be installed. */
export function pythonWithNumpy(): string | null {
  try {
    return venvWith(HOME, [[`numpy==${NUMPY}`]]).python;
  } catch {
    return null;
  }
}

/** Runs the trainer against the server at `url` and yields its steps. Throws an Error when the process fails. */
export async function* trainInPython(
  python: string,
  { url, token, harness, steps }: { url: string; token: string; harness: string; steps: number },
): AsyncGenerator<Step> {
  const program = join(repositoryRoot(), 'examples', 'learn-sim', 'learn.py');
  const options = ['--url', url, '--harness', harness, '--steps', String(steps), '--json'];
  const child = new Child([python, program, ...options], {
    env: { FLOE_TOKEN: token, PYTHONPATH: PYTHON_PACKAGE, PYTHONDONTWRITEBYTECODE: '1' },
  });
  try {
    for await (const line of child.lines) yield JSON.parse(line) as Step;
    const { code } = await child.exited;
    if (code !== 0) throw new Error(`learn.py ended with ${code}: ${child.errors}`);
  } finally {
    await child.kill();
  }
}
