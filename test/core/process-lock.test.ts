import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
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
});
