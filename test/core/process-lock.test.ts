import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { takeLock } from '../../src/core/process-lock.ts';

describe('takeLock', () => {
  let dir: string;
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-lock-'));
  });
  afterEach(() => rm(dir, { recursive: true, force: true }));

  it('is given to one of many that ask at once, and again after its release', async () => {
    const path = join(dir, 'x.lock');
    const asked = await Promise.allSettled(Array.from({ length: 20 }, () => takeLock(path, 'the thing')));
    const given = asked.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []));
    expect(given).toHaveLength(1);
    expect(await readdir(dir)).toEqual(['x.lock']);
    await given[0]?.();
    await (await takeLock(path, 'the thing'))();
    expect(await readdir(dir)).toEqual([]);
  });

  it('is taken over from a process that is gone', async () => {
    const path = join(dir, 'x.lock');
    await writeFile(path, '999999999 1');
    await expect(takeLock(path, 'the thing')).resolves.toBeTypeOf('function');
  });

  it('of a process that is gone is taken over by one of many that find it', async () => {
    const path = join(dir, 'x.lock');
    for (let round = 0; round < 20; round++) {
      await writeFile(path, '999999999 1');
      const asked = await Promise.allSettled(Array.from({ length: 20 }, () => takeLock(path, 'the thing')));
      expect(asked.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
      expect(await readdir(dir)).toEqual(['x.lock']);
    }
  });

  it('is not taken over from another host, which is named', async () => {
    const path = join(dir, 'x.lock');
    await writeFile(path, '999999999 1 another-boot another-host');
    await expect(takeLock(path, 'the thing')).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringMatching(/on host another-host; .*--state-dir.* delete .*x\.lock/),
      details: { host: 'another-host' },
    });
    expect(await readdir(dir)).toEqual(['x.lock']);
  });

  it('is taken over from this host before it was started anew, and from a container of it that is gone', async () => {
    const path = join(dir, 'x.lock');
    const release = await takeLock(path, 'the thing');
    const [pid, start, boot, host] = (await readFile(path, 'utf8')).split(' ');
    await release();
    expect([pid, host]).toEqual([String(process.pid), hostname()]);
    for (const left of [`${pid} ${start} another-boot ${host}`, `999999999 1 ${boot} another-host`]) {
      await writeFile(path, left);
      await (await takeLock(path, 'the thing'))();
    }
  });
});
