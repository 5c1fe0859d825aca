import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';
import { asUnprivilegedUser, unprivilegedMissing } from '../../../../../verify/services/unprivileged.ts';

it('passes the tests of contract, isolation, snapshots, inheritance, system calls, images, state directory and sandboxes for several sessions as a user without privilege', async (context) => {
  const missing = unprivilegedMissing();
  if (missing !== null) context.skip(missing);
  const options = ['--configLoader', 'runner', '--no-cache', '--reporter=./tools/summary-reporter.ts'];
  const vitest = [process.execPath, 'node_modules/vitest/vitest.mjs', 'run', ...options];
  const names = [
    'runtimes/contract',
    'runtimes/tools',
    'runtimes/apptainer/provider',
    'sandbox-images/sif',
    'runtimes/bubblewrap/isolation',
    'runtimes/bubblewrap/snapshot',
    'runtimes/bubblewrap/inheritance',
    'runtimes/denied-calls',
    'runtimes/bubblewrap/image',
    'core/remove-tree',
    'gateway/recovery/state-dir',
    'gateway/session/reused-containers',
  ];
  const files = names.map((name) => `test/${name}.test.ts`);
  const { program, args, env, remove } = asUnprivilegedUser([...vitest, ...files]);
  try {
    const run = promisify(execFile)(program, args, { env, maxBuffer: 16 * 1024 * 1024 });
    const { stdout } = await run.catch((error: { stdout: string; stderr: string }) => {
      // Files that passed would hide the failures in a summary of the first lines.
      throw new Error(`${error.stdout.replaceAll(/^ok .*\n/gm, '')}\n${error.stderr}`);
    });
    expect(stdout).toMatch(/\n[1-9]\d* passed, 0 failed\n$/);
  } finally {
    remove();
  }
}, 400_000);
