import { MIB } from '@floe-rl/core';
import { afterAll, beforeAll, expect } from 'vitest';
import { describeIf, harnessMissing, itIf } from '../../../../../test/skip.ts';
import { harnessDir } from '../../../../floe/src/commands/home.ts';
import { bubblewrapMissing, never, Workbench } from '../../../../sandbox/test/backends/workbench.ts';
import { compileCacheDir } from '../../../src/harnesses/harness.ts';
import { commandOf, harnessInstalls } from '../../../src/harnesses/install/catalog.ts';
import { harnessStatus, installedBytes } from '../../../src/harnesses/install/install.ts';

// Finds the harnesses that are installed on this machine, because only these are tested. `floe harness install --all` installs all of them.
const installed = await Promise.all(
  [...harnessInstalls()].map(async ([name, install]) => {
    const { path } = await harnessStatus(name, harnessDir());
    return { name, install, path: path ?? '' };
  }),
);
const problem = await bubblewrapMissing();

describeIf(problem, 'in a sandbox without a network', () => {
  let bench: Workbench;
  beforeAll(async () => {
    bench = await Workbench.open();
  });
  afterAll(() => bench.close());

  for (const { name, install, path } of installed) {
    itIf(
      harnessMissing(name, path !== ''),
      `starts the installed ${name} and does not let the sandbox change it`,
      async () => {
        const readOnlyMounts = [{ hostPath: path, sandboxPath: path }];
        const runtime = await bench.start('bubblewrap', {}, { readOnlyMounts });
        const env = { ...install.warmUpEnv, NODE_COMPILE_CACHE: compileCacheDir(path) };
        const started = await runtime.exec({ command: [...commandOf(install, path), ...install.warmUp], env }, never);
        const touched = await runtime.exec({ command: ['touch', `${path}/new`] }, never);
        await runtime.stop();
        expect(started.stderr).not.toMatch(/error/i);
        expect(started.exitCode).toBe(0);
        if (install.warmUp[0] === '--version') expect(started.stdout).toContain(install.version);
        expect(touched.exitCode).toBe(1);
        expect(touched.stderr).toMatch(/Read-only file system/);
      },
    );
  }
});

for (const { name, install, path } of installed) {
  itIf(harnessMissing(name, path !== ''), `the catalog states the size of the installed ${name}`, async () => {
    const mib = (await installedBytes(path)) / MIB;
    expect(install.diskMb).toBeGreaterThanOrEqual(mib);
    expect(install.diskMb).toBeLessThan(1.25 * mib);
  });
}
