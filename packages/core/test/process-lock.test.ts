import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { acquireLock } from '../src/process-lock.ts';

/** Returns the content of a lock file that a process of this machine left when it died. */
async function lockOfDeadProcess(): Promise<string> {
  const boot = (await readFile('/proc/sys/kernel/random/boot_id', 'utf8')).trim();
  return `999999999 1 ${boot} ${hostname()}`;
}

describe('acquireLock', () => {
  let dir: string;
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-lock-'));
  });
  afterEach(() => rm(dir, { recursive: true, force: true }));

  it('grants the lock to one of many concurrent callers, and to the next caller after its release', async () => {
    const path = join(dir, 'x.lock');
    const calls = await Promise.allSettled(Array.from({ length: 20 }, () => acquireLock(path, 'the thing')));
    const given = calls.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []));
    expect(given).toHaveLength(1);
    expect(await readdir(dir)).toEqual(['x.lock']);
    await given[0]?.();
    await (await acquireLock(path, 'the thing'))();
    expect(await readdir(dir)).toEqual([]);
  });

  it('takes over the lock of a dead process', async () => {
    const path = join(dir, 'x.lock');
    await writeFile(path, await lockOfDeadProcess());
    await expect(acquireLock(path, 'the thing')).resolves.toBeTypeOf('function');
  });

  it('lets one of many concurrent callers take over the lock of a dead process', async () => {
    const path = join(dir, 'x.lock');
    for (let round = 0; round < 20; round++) {
      await writeFile(path, await lockOfDeadProcess());
      const calls = await Promise.allSettled(Array.from({ length: 20 }, () => acquireLock(path, 'the thing')));
      expect(calls.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
      expect(await readdir(dir)).toEqual(['x.lock']);
    }
  });

  it('does not take over the lock of another host, and names that host', async () => {
    const path = join(dir, 'x.lock');
    await writeFile(path, '999999999 1 another-boot another-host');
    await expect(acquireLock(path, 'the thing')).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringMatching(/on host another-host; .*--state-dir.* delete .*x\.lock/),
      details: { host: 'another-host' },
    });
    expect(await readdir(dir)).toEqual(['x.lock']);
  });

  it('takes over a lock from before the last start of this host, and the lock of a dead container of this host', async () => {
    const path = join(dir, 'x.lock');
    const release = await acquireLock(path, 'the thing');
    const [pid, start, boot, host] = (await readFile(path, 'utf8')).split(' ');
    await release();
    expect([pid, host]).toEqual([String(process.pid), hostname()]);
    for (const left of [`${pid} ${start} another-boot ${host}`, `999999999 1 ${boot} another-host`]) {
      await writeFile(path, left);
      await (await acquireLock(path, 'the thing'))();
    }
  });
});
