import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemClock, VirtualClock } from '@floe-rl/core';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { withSharedLock } from '../../src/images/shared-lock.ts';

describe('withSharedLock', () => {
  let dir: string;
  let path: string;
  const { signal } = new AbortController();
  beforeEach(() => {
    dir = mkdtempSync(join(tmpdir(), 'floe-lock-'));
    path = join(dir, 'lock');
  });
  afterEach(() => rmSync(dir, { recursive: true, force: true }));

  it('runs one piece of work at a time and removes the lock', async () => {
    let running = 0;
    let most = 0;
    const work = async () => {
      most = Math.max(most, ++running);
      await new Promise((resolve) => setTimeout(resolve, 5));
      running--;
    };
    await Promise.all([1, 2, 3].map(() => withSharedLock(path, { clock: systemClock, signal }, work)));
    expect([most, readdirSync(dir)]).toEqual([1, []]);
  });

  it('removes the lock when the work fails', async () => {
    const work = () => Promise.reject(new Error('no'));
    await expect(withSharedLock(path, { clock: systemClock, signal }, work)).rejects.toThrow('no');
    expect(readdirSync(dir)).toEqual([]);
  });

  it('takes over the lock of a process that has ended, after its time has not changed for a while', async () => {
    writeFileSync(path, 'another process');
    const clock = new VirtualClock();
    const taken = withSharedLock(path, { clock, signal }, async () => clock.monotonicMs());
    let takenAtMs: number | null = null;
    taken.then((atMs) => {
      takenAtMs = atMs;
    });
    while (takenAtMs === null) {
      clock.fireNext();
      await new Promise(setImmediate);
    }
    expect(takenAtMs).toBeGreaterThan(30_000);
    expect(readdirSync(dir)).toEqual([]);
  });

  it('ends the wait when the signal aborts', async () => {
    writeFileSync(path, 'another process');
    const stop = new AbortController();
    const waiting = withSharedLock(path, { clock: systemClock, signal: stop.signal }, async () => 'done');
    stop.abort(new Error('enough'));
    await expect(waiting).rejects.toThrow('enough');
  });
});
