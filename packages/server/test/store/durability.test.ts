import { createHash } from 'node:crypto';
import { existsSync, readlinkSync } from 'node:fs';
import { mkdtemp, open, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { systemClock } from '@floe-rl/core';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { DirectoryBlobStore } from '../../src/store/index.ts';
import { openConnection } from '../../src/store/sqlite/connection.ts';

let root = '';
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'floe-durability-'));
});
afterEach(async () => {
  vi.restoreAllMocks();
  await rm(root, { recursive: true, force: true });
});

/**
 * Records each file or directory that is synced from now on. `path` is relative to the blob directory, and `named` states whether the blob
 * `ref` had its final name at that time.
 */
async function recordSyncs(ref: string): Promise<(readonly [path: string, named: boolean])[]> {
  const syncs: (readonly [string, boolean])[] = [];
  const handle = await open(root);
  const prototype = Object.getPrototypeOf(handle);
  const sync: () => Promise<void> = prototype.sync;
  await handle.close();
  vi.spyOn(prototype, 'sync').mockImplementation(async function (this: unknown) {
    const { fd } = this as { fd: number };
    const path = relative(root, readlinkSync(`/proc/self/fd/${fd}`)).replace(/\.[0-9a-f]{12}$/, '');
    syncs.push([path, existsSync(join(root, ref.slice(0, 2), ref))]);
    await sync.call(this);
  });
  return syncs;
}

const BYTES = Buffer.from('precious');
const REF = createHash('sha256').update(BYTES).digest('hex');
const FOLDER = REF.slice(0, 2);

describe('after a loss of power', () => {
  it('a stored blob is complete, because its bytes are synced before it has its name, and its directory after that', async () => {
    const store = await DirectoryBlobStore.open(root, systemClock);
    const syncs = await recordSyncs(REF);
    await store.put(BYTES);
    expect(syncs).toEqual([
      ['', false],
      [`tmp/${REF}`, false],
      [FOLDER, true],
    ]);
  });

  it('a blob that exists already is named durably before it is acknowledged once more', async () => {
    const store = await DirectoryBlobStore.open(root, systemClock);
    await store.put(BYTES);
    const syncs = await recordSyncs(REF);
    await store.put(BYTES);
    expect(syncs).toEqual([[FOLDER, true]]);
  });

  it('a commit to SQLite survives, because it is synced to the write-ahead log', async () => {
    const { kysely } = openConnection(join(root, 'floe.db'));
    const pragma = async (name: string): Promise<unknown> => {
      const { rows } = await kysely.executeQuery<Record<string, unknown>>(
        // A statement of SQLite's own, which kysely's query builder cannot express.
        { sql: `pragma ${name}`, parameters: [], query: { kind: 'RawNode' } } as never,
      );
      return Object.values(rows[0] ?? {})[0];
    };
    expect(await pragma('journal_mode')).toBe('wal');
    // 2 is FULL: every commit is synced. With 1 (NORMAL), a loss of power can undo commits that were acknowledged.
    expect(await pragma('synchronous')).toBe(2);
    await kysely.destroy();
  });
});
