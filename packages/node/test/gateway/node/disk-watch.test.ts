import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type OpenAppendFile, openAppendFile } from '@floe-rl/capture';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { DiskWatch } from '../../../src/gateway/node/disk-watch.ts';

let dir: string;
let broken = false;

/** Opens files to which every write fails while `broken` is true, as on a failing disk. */
const flaky: OpenAppendFile = async (path) => {
  const file = await openAppendFile(path);
  return {
    append: (data) => (broken ? Promise.reject(new Error('EIO: i/o error, write')) : file.append(data)),
    close: () => file.close(),
  };
};

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-disk-'));
  broken = false;
});

afterEach(() => rm(dir, { recursive: true }));

describe('DiskWatch', () => {
  it('writes no probe while no write has failed', async () => {
    broken = true;
    expect(await new DiskWatch(dir, { openFile: flaky }).problem()).toBeNull();
  });

  it('passes on a failed write and reports a problem until a probe succeeds', async () => {
    const disk = new DiskWatch(dir, { openFile: flaky });
    broken = true;
    await expect(disk.watch(Promise.reject(new Error('lost')))).rejects.toThrow('lost');
    for (let i = 0; i < 2; i++)
      expect(await disk.problem()).toBe(`the disk of ${dir} refuses writes: EIO: i/o error, write`);
    broken = false;
    expect(await disk.problem()).toBeNull();
    expect(await disk.watch(Promise.resolve(7))).toBe(7);
    expect(await readdir(dir)).toEqual([]);
  });

  it('reports a nearly full disk before a write fails', async () => {
    let free = 1_000;
    const disk = new DiskWatch(dir, { freeBytes: async () => free });
    expect(await disk.problem()).toContain(`the disk of ${dir} is full: 1000 bytes are free`);
    free = 1e9;
    expect(await disk.problem()).toBeNull();
  });

  it('reports a removed directory as a problem instead of rejecting', async () => {
    expect(await new DiskWatch(join(dir, 'absent')).problem()).toContain('refuses writes: ENOENT');
  });
});
