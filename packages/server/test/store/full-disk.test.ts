import { rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { systemClock } from '@floe-rl/core';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { DirectoryBlobStore, SqliteStore, type Store } from '../../src/store/index.ts';
import { NO_SMALL_DISK, type SmallDisk, smallDisk } from './small-disk.ts';
import { taskRow } from './store-rows.ts';

const DISK_BYTES = 4_000_000;

let disk: SmallDisk | null = null;
beforeEach(async () => {
  disk = await smallDisk(DISK_BYTES);
});
afterEach(() => disk?.close());

const insert = (store: Store, id: string, bytes = 100_000) =>
  store.transaction((tables) => tables.tasks.insert(taskRow(id, { request: 'x'.repeat(bytes) })));

/** Adds tasks until the store refuses one. Returns the ids of the added tasks, and the error of the refused one. */
async function fill(store: Store): Promise<{ acknowledged: string[]; refusal: unknown }> {
  const acknowledged: string[] = [];
  for (let i = 0; ; i++) {
    try {
      await insert(store, `t${i}`);
    } catch (refusal) {
      return { acknowledged, refusal };
    }
    acknowledged.push(`t${i}`);
  }
}

describe('a disk', () => {
  it('that is full is reported by SQLite, which acknowledges only what it keeps, and continues when space is free', async (context) => {
    if (disk === null) return context.skip(NO_SMALL_DISK);
    const path = join(disk.dir, 'full', 'floe.db');
    const ballast = join(disk.dir, 'ballast');
    await writeFile(ballast, Buffer.alloc(1_000_000));
    const store = SqliteStore.open(path);
    const { acknowledged, refusal } = await fill(store);
    expect(refusal).toMatchObject({ code: 'store_unavailable' });
    const all = await Promise.allSettled(Array.from({ length: 10 }, (_, i) => insert(store, `full${i}`)));
    expect(all.map((one) => one.status === 'rejected' && one.reason.code)).toEqual(Array(10).fill('store_unavailable'));
    // While the disk is full, the store can still be read, and it contains every acknowledged task.
    expect(await store.read((tables) => tables.tasks.list({ status: null, limit: 1000 }))).toHaveLength(
      acknowledged.length,
    );

    await rm(ballast);
    await insert(store, 'after');
    await store.close();
    const again = SqliteStore.open(path);
    const kept = await again.read((tables) => tables.tasks.list({ status: null, limit: 1000 }));
    expect(kept.map((row) => row.task_id).reverse()).toEqual([...acknowledged, 'after']);
    await again.close();
  });

  it('that is full is reported by the blob directory, which keeps what it has, and continues when space is free', async (context) => {
    if (disk === null) return context.skip(NO_SMALL_DISK);
    const ballast = join(disk.dir, 'ballast');
    await writeFile(ballast, Buffer.alloc(DISK_BYTES - 500_000));
    const blobs = await DirectoryBlobStore.open(join(disk.dir, 'blobs'), systemClock);
    const { ref } = await blobs.put(Buffer.from('before'));
    const large = Buffer.alloc(1_000_000, 'x');
    await expect(blobs.put(large)).rejects.toMatchObject({ code: 'store_unavailable' });
    expect((await blobs.get(ref)).toString()).toBe('before');
    await rm(ballast);
    expect(await blobs.get((await blobs.put(large)).ref)).toEqual(large);
  });

  it('that becomes read-only causes store_unavailable until it is writable', async (context) => {
    if (disk === null) return context.skip(NO_SMALL_DISK);
    const path = join(disk.dir, 'read-only', 'floe.db');
    const blobs = await DirectoryBlobStore.open(join(disk.dir, 'read-only', 'blobs'), systemClock);
    disk.setReadOnly(true);
    expect(() => SqliteStore.open(path)).toThrow(expect.objectContaining({ code: 'setup_failed' }));
    await expect(blobs.put(Buffer.from('x'))).rejects.toMatchObject({ code: 'store_unavailable' });
    disk.setReadOnly(false);
    await blobs.put(Buffer.from('x'));
    const store = SqliteStore.open(path);
    await insert(store, 'writable');
    await store.close();
  });
});
