import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';
import { asUnprivilegedUser, unprivilegedMissing } from '../../../../../../verify/services/unprivileged.ts';

it('a user without privileges passes the tests of contract, isolation, snapshots, inheritance, system calls, images, state directory and sandboxes for several sessions', async (context) => {
  const missing = unprivilegedMissing();
  if (missing !== null) context.skip(missing);
  const options = ['--configLoader', 'runner', '--no-cache', '--reporter=./tools/summary-reporter.ts'];
  const vitest = [process.execPath, 'node_modules/vitest/vitest.mjs', 'run', ...options];
  const names = [
    'packages/sandbox/test/integration/backends/contract',
    'packages/sandbox/test/integration/api/tools.long',
    'packages/sandbox/test/integration/backends/apptainer/provider',
    'packages/sandbox/test/integration/images/sif',
    'packages/sandbox/test/integration/backends/bubblewrap/isolation',
    'packages/sandbox/test/integration/backends/bubblewrap/snapshot',
    'packages/sandbox/test/integration/backends/bubblewrap/inheritance',
    'packages/sandbox/test/integration/backends/denied-calls',
    'packages/sandbox/test/integration/backends/bubblewrap/image',
    'packages/core/test/remove-tree',
    'packages/node/test/integration/gateway/recovery/state-dir',
    'packages/node/test/integration/gateway/session/reused-containers.long',
  ];
  const files = names.map((name) => `${name}.test.ts`);
  const { program, args, env, remove } = asUnprivilegedUser([...vitest, ...files]);
  try {
    const run = promisify(execFile)(program, args, {
      env: { ...env, FLOE_ALL_TESTS: '1' },
      maxBuffer: 16 * 1024 * 1024,
    });
    const { stdout } = await run.catch((error: { stdout: string; stderr: string }) => {
      // Files that passed would hide the failures in a summary of the first lines.
      throw new Error(`${error.stdout.replaceAll(/^ok .*\n/gm, '')}\n${error.stderr}`);
    });
    expect(stdout).toMatch(/\n[1-9]\d* passed, 0 failed\n$/);
  } finally {
    remove();
  }
}, 400_000);
