import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { VirtualClock } from '../../src/core/virtual-clock.ts';
import { LocalRuntime } from '../../src/runtimes/local-runtime.ts';
import type { SpawnResult } from '../../src/runtimes/spawn/spawner.ts';
import { runtimeSpecSchema } from '../../src/schema/index.ts';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-kill-'));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

it('a command that not even SIGKILL ends is given up, so that its session can end', async () => {
  const clock = new VirtualClock();
  let kills = 0;
  let spawned = (): void => {};
  const begun = new Promise<void>((resolve) => {
    spawned = resolve;
  });
  const runtime = new LocalRuntime({
    spawner: {
      spawn: async () => {
        spawned();
        return {
          pid: 1,
          done: new Promise<SpawnResult>(() => {}),
          firstLine: Promise.resolve(null),
          kill: () => kills++,
        };
      },
      close: async () => {},
    },
    clock,
    owner: { id: 'owner', instance: 'me' },
    cgroups: null,
    dir,
    request: { name: 'ses_1-1-agent', spec: runtimeSpecSchema.parse({}), proxy: null, readOnlyMounts: [] },
    token: 'token',
  });
  const stop = new AbortController();
  const ended = runtime.exec({ command: 'cat /net/away', cwd: dir }, stop.signal).catch((error: unknown) => error);
  await begun;
  await new Promise((resolve) => setImmediate(resolve));
  stop.abort(new Error('enough'));
  clock.advance(9_000);
  expect(await Promise.race([ended, new Promise((resolve) => setImmediate(() => resolve('waits')))])).toBe('waits');
  clock.advance(2_000);
  expect(await ended).toMatchObject({ code: 'runtime_failed', details: { unkillable: true } });
  expect(kills).toBeGreaterThan(0);
  await runtime.stop();
});
