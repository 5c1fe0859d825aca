import { mkdtemp, readdir, rm, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemClock } from '@floe-rl/core';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { DirectoryBlobStore } from '../../../src/store/index.ts';
import { describeBlobs } from './blob-store-contract.ts';

let root: string;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'floe-blobs-'));
});
afterEach(() => rm(root, { recursive: true, force: true }));

const open = () => DirectoryBlobStore.open(root, systemClock);

describeBlobs('DirectoryBlobStore', async () => ({
  store: await open(),
  again: open,
  fileOf: (ref) => join(root, ref.slice(0, 2), ref),
}));

describe('DirectoryBlobStore', () => {
  it('leaves no temporary file', async () => {
    const blobs = await open();
    await Promise.all(Array.from({ length: 20 }, (_, i) => blobs.put(Buffer.from(`blob ${i % 3}`))));
    expect(await readdir(join(root, 'tmp'))).toEqual([]);
  });

  it('removes the temporary files of a crash at the next start, but not one that is being written', async () => {
    await open();
    await writeFile(join(root, 'tmp', 'old'), 'x');
    await utimes(join(root, 'tmp', 'old'), 1, 1);
    await writeFile(join(root, 'tmp', 'new'), 'x');
    await open();
    expect(await readdir(join(root, 'tmp'))).toEqual(['new']);
  });

  it('throws store_unavailable for a directory that cannot be written, and names the operation', async () => {
    const file = join(root, 'file');
    const directory = join(root, 'directory');
    await writeFile(file, 'x');
    const unavailable = (operation: string) =>
      expect.objectContaining({ code: 'store_unavailable', message: expect.stringContaining(`cannot ${operation}: `) });
    await expect(DirectoryBlobStore.open(file, systemClock)).rejects.toEqual(unavailable('open'));
    const blobs = await DirectoryBlobStore.open(directory, systemClock);
    await rm(directory, { recursive: true });
    await writeFile(directory, 'x');
    await expect(blobs.put(Buffer.from('x'))).rejects.toEqual(unavailable('write'));
    await expect(blobs.get('0'.repeat(64))).rejects.toEqual(unavailable('read'));
  });
});
