import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, rmdirSync } from 'node:fs';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { acquireLock, systemClock } from '@floe-rl/core';
import { harnessStatus } from '@floe-rl/node';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { harnessMissing, itIf, NO_CONTROL_GROUPS } from '../../../../../test/skip.ts';
import { openStateDir, removeStateDir } from '../../../../node/src/gateway/recovery/state-dir.ts';
import { Cgroups } from '../../../../sandbox/src/processes/cgroup.ts';
import { harnessDir } from '../../../src/commands/home.ts';

const CLI = join(import.meta.dirname, '..', '..', '..', 'dist', 'commands', 'main.js');

const { installed } = await harnessStatus('pi', harnessDir());
const groups = await Cgroups.find(systemClock, `probe${process.pid}`);

describe('floe demo', () => {
  let dir: string;
  let demoDir: string;
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-demo-'));
    demoDir = join(dir, '.floe', 'demo');
    await mkdir(demoDir, { recursive: true });
  });
  afterEach(() => rm(dir, { recursive: true, force: true }));

  function startDemo(): ChildProcess & { readonly stderr: NodeJS.ReadableStream } {
    const env = { ...process.env, FLOE_HARNESS_DIR: harnessDir() };
    const args = [CLI, 'demo', '--backend', 'local', '--samples', '1'];
    return spawn(process.execPath, args, { cwd: dir, env, stdio: ['ignore', 'ignore', 'pipe'] });
  }

  it('refuses to run in a directory in which another demo runs, and keeps its files', async () => {
    await writeFile(join(demoDir, 'kept'), 'x');
    const release = await acquireLock(join(dir, '.floe', 'demo.lock'), 'the demo');
    try {
      const demo = startDemo();
      const [stderr, [code]] = await Promise.all([text(demo.stderr), once(demo, 'exit')]);
      expect(stderr).toContain('in use by process');
      expect(code).toBe(1);
      expect(existsSync(join(demoDir, 'kept'))).toBe(true);
    } finally {
      await release();
    }
  });

  itIf(
    harnessMissing('pi', installed) ?? (groups === null ? NO_CONTROL_GROUPS : null),
    'removes the control groups that a killed demo left in the same directory',
    async () => {
      const stateDir = join(demoDir, 'gateway');
      const state = await openStateDir(stateDir, systemClock);
      const limits = { memoryBytes: 2 ** 26, taskCount: 10, cpus: null };
      const killed = await Cgroups.find(systemClock, state.ownerId);
      const { directories = [] } = (await killed?.create('ses_1', limits)) ?? {};
      await state.release();
      expect(directories.filter((directory) => existsSync(directory))).not.toEqual([]);

      const demo = startDemo();
      const exited = once(demo, 'exit');
      try {
        const lines = createInterface({ input: demo.stderr });
        // The demo prints this line when its server and node run, before the first session.
        for await (const line of lines) if (line.includes('samples')) break;
        expect(directories.filter((directory) => existsSync(directory))).toEqual([]);
        expect(readdirSync(demoDir)).toContain('gateway');
      } finally {
        demo.kill('SIGKILL');
        await exited;
        await removeStateDir(stateDir, systemClock);
        for (const directory of directories) if (existsSync(directory)) rmdirSync(directory);
      }
    },
  );
});
