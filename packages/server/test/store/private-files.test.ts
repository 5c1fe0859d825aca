import { chmodSync, mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemClock } from '@floe-rl/core';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type OpenStore, openStore } from '../../src/store/index.ts';
import { taskRow } from './store-rows.ts';

const FILES = ['floe.db', 'floe.db-shm', 'floe.db-wal'];

let dir: string;
const opened: OpenStore[] = [];
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'floe-private-'));
  chmodSync(dir, 0o755);
});
afterEach(async () => {
  for (const { store, blobs } of opened.splice(0)) {
    await store.close();
    await blobs.close();
  }
  rmSync(dir, { recursive: true, force: true });
});

async function open(notices: string[] = []): Promise<OpenStore> {
  const place = { dir, database: null, blobs: null, clock: systemClock };
  const data = await openStore({ ...place, notify: (notice) => notices.push(notice) });
  opened.push(data);
  await data.store.transaction((tables) => tables.tasks.insert(taskRow(`t${opened.length}`)));
  return data;
}

/** Returns the permissions of paths below the directory, in octal. */
const modesOf = (paths: readonly string[]) => paths.map((path) => (statSync(join(dir, path)).mode & 0o777).toString(8));

describe('the files of a store in a directory that other users may read', () => {
  it('are readable by their owner alone', async () => {
    const notices: string[] = [];
    const { blobs } = await open(notices);
    const { ref } = await blobs.put(Buffer.from('a result'));
    expect(readdirSync(dir).sort()).toEqual(['blobs', ...FILES]);
    expect(modesOf(FILES)).toEqual(['600', '600', '600']);
    expect(modesOf([join('blobs', ref.slice(0, 2), ref)])).toEqual(['600']);
    expect(modesOf(['blobs', join('blobs', 'tmp'), join('blobs', ref.slice(0, 2))])).toEqual(['700', '700', '700']);
    expect(notices).toEqual([]);
  });

  it('are restricted with a notice when an earlier version left them readable for others', async () => {
    await open();
    for (const name of FILES) chmodSync(join(dir, name), 0o644);
    const notices: string[] = [];
    await open(notices);
    expect(modesOf(FILES)).toEqual(['600', '600', '600']);
    const noticeOf = (name: string) => `${join(dir, name)} was accessible to other users of this machine (mode 644)`;
    expect(notices.sort()).toEqual(FILES.map((name) => expect.stringContaining(noticeOf(name))));
  });
});
