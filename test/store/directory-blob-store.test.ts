import { createHash } from 'node:crypto';
import { mkdtemp, readdir, rm, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { systemClock } from '../../src/core/clock.ts';
import { DirectoryBlobStore } from '../../src/store/index.ts';

let root: string;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'floe-blobs-'));
});
afterEach(() => rm(root, { recursive: true, force: true }));

const open = () => DirectoryBlobStore.open(root, systemClock);

test('bytes come back as they were, under the hash of their content', async () => {
  const bytes = Buffer.from([0, 1, 2, 255, 10, 13]);
  const blob = await (await open()).put(bytes);
  expect(blob).toEqual({ ref: createHash('sha256').update(bytes).digest('hex'), bytes: 6 });
  expect(await (await open()).get(blob.ref)).toEqual(bytes);
});

test('the same bytes, stored at the same time and again, are one file and leave nothing temporary', async () => {
  const blobs = await open();
  const refs = await Promise.all(Array.from({ length: 20 }, () => blobs.put(Buffer.from('same'))));
  await blobs.put(Buffer.from('same'));
  const [first] = refs;
  expect(new Set(refs.map((blob) => blob.ref)).size).toBe(1);
  expect(await readdir(join(root, first?.ref.slice(0, 2) ?? ''))).toEqual([first?.ref]);
  expect(await readdir(join(root, 'tmp'))).toEqual([]);
});

test('damaged and missing bytes are reported, never returned', async () => {
  const blobs = await open();
  const { ref } = await blobs.put(Buffer.from('precious'));
  await writeFile(join(root, ref.slice(0, 2), ref), 'previous');
  await expect(blobs.get(ref)).rejects.toMatchObject({ code: 'store_unavailable', details: { ref } });
  await expect(blobs.get('0'.repeat(64))).rejects.toMatchObject({ code: 'store_unavailable' });
});

test('a name that is not a hash never reaches the file system', async () => {
  const blobs = await open();
  for (const ref of ['../floe.db', '', 'A'.repeat(64), `${'0'.repeat(64)}/..`]) {
    await expect(blobs.get(ref)).rejects.toMatchObject({ code: 'internal' });
  }
});

test('what a crash left behind is removed at the next start, what is being written is not', async () => {
  await open();
  await writeFile(join(root, 'tmp', 'old'), 'x');
  await utimes(join(root, 'tmp', 'old'), 1, 1);
  await writeFile(join(root, 'tmp', 'new'), 'x');
  await open();
  expect(await readdir(join(root, 'tmp'))).toEqual(['new']);
});

test('a directory that cannot be written is a store_unavailable', async () => {
  await writeFile(join(root, 'file'), 'x');
  await expect(DirectoryBlobStore.open(join(root, 'file'), systemClock)).rejects.toMatchObject({
    code: 'store_unavailable',
  });
});
