import { mkdtemp, rm, utimes } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { VirtualClock } from '@floe-rl/core';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { rolloutConfigSchema } from '../../src/rollout/config.ts';
import { type ControlPlane, createControlPlane } from '../../src/rollout/control-plane.ts';
import { sweepRetention } from '../../src/rollout/retention.ts';
import { DirectoryBlobStore, SqliteStore, type StoreTables } from '../../src/store/index.ts';
import { addSessions, NO_BLOBS, taskRow } from '../store/store-rows.ts';

const HOUR_MS = 3_600_000;

let root: string;
let clock: VirtualClock;
let store: SqliteStore;
let blobs: DirectoryBlobStore;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'floe-retention-'));
  clock = new VirtualClock(Date.now());
  store = SqliteStore.open(':memory:');
  blobs = await DirectoryBlobStore.open(root, clock);
});
afterEach(async () => {
  await store.close();
  await rm(root, { recursive: true });
});

function plane(retainTasksHours: number | null): Promise<ControlPlane> {
  const config = rolloutConfigSchema.parse({ retain_tasks_hours: retainTasksHours });
  return createControlPlane(config, { store, blobs, clock, validateTask: () => {} });
}

/** Stores a blob and changes its file time so that the blob is `hours` old. */
async function blobOfAge(text: string, hours: number): Promise<{ ref: string; bytes: number }> {
  const blob = await blobs.put(Buffer.from(text));
  const seconds = (clock.nowMs() - hours * HOUR_MS) / 1000;
  await utimes(join(root, blob.ref.slice(0, 2), blob.ref), seconds, seconds);
  return blob;
}

async function ended(tables: StoreTables, id: string, endedMs: number, trajectory: { ref: string; bytes: number }) {
  await tables.tasks.insert(taskRow(id, { status: 'completed', ended_ms: endedMs }));
  await addSessions(tables, id, [`${id}-s`]);
  await tables.sessions.update(`${id}-s`, { status: 'COMPLETED', summary: '{}' });
  const session = { session_id: `${id}-s`, task_id: id, trainer: 'default' };
  await tables.results.append(session, { ...NO_BLOBS, trajectory });
}

const tasks = async () =>
  (await store.read((tables) => tables.tasks.list({ status: null, limit: 1000 }))).map((row) => row.task_id).sort();

const there = (ref: string) =>
  blobs.get(ref).then(
    () => true,
    () => false,
  );

describe('sweepRetention', () => {
  it('removes old, collected tasks in small batches, and then their blobs', async () => {
    const { context } = await plane(2);
    const [shared, own, young] = await Promise.all([
      blobOfAge('shared', 5),
      blobOfAge('own', 5),
      blobOfAge('young', 0.5),
    ]);
    await store.transaction(async (tables) => {
      await ended(tables, 'kept', 3 * HOUR_MS, shared);
      await ended(tables, 'shares', 0, shared);
      await ended(tables, 'owns', 0, own);
      await ended(tables, 'is-young', 0, young);
      for (let i = 0; i < 40; i++) await ended(tables, `many-${i}`, 0, own);
      await tables.results.collect(null, 1_000_000);
      await ended(tables, 'not-collected', 0, shared);
    });
    clock.advance(4 * HOUR_MS);
    // After 4 hours on the virtual clock, the tasks are old enough to be deleted. The files of the blobs have real times, so their times are
    // set to values relative to the virtual clock.
    for (const [blob, hours] of [
      [shared, 5],
      [own, 5],
      [young, 0.5],
    ] as const) {
      const seconds = (clock.nowMs() - hours * HOUR_MS) / 1000;
      await utimes(join(root, blob.ref.slice(0, 2), blob.ref), seconds, seconds);
    }
    await sweepRetention(context);
    expect(await tasks()).toEqual(['kept', 'not-collected']);
    expect(context.counters.get('tasks_removed')).toBe(43);
    expect(await Promise.all([shared, own, young].map(({ ref }) => there(ref)))).toEqual([true, false, true]);
    expect(context.counters.get('blobs_removed')).toBe(1);
  });

  it('removes no task that is kept indefinitely, but its unreferenced blobs', async () => {
    const { context } = await plane(null);
    const [named, orphan] = [await blobOfAge('named', 9), await blobOfAge('orphan', 9)];
    await store.transaction(async (tables) => {
      await ended(tables, 'a', 0, named);
      await tables.results.collect(null, 9);
    });
    clock.advance(1000 * HOUR_MS);
    await sweepRetention(context);
    expect(await tasks()).toEqual(['a']);
    expect(await there(named.ref)).toBe(true);
    expect(await there(orphan.ref)).toBe(false);
  });

  it('removes everything once when two servers sweep concurrently', async () => {
    const planes = [await plane(1), await plane(1)];
    const [orphans, blob] = [
      await Promise.all(Array.from({ length: 250 }, (_, i) => blobOfAge(`o${i}`, 3))),
      await blobOfAge('b', 3),
    ];
    await store.transaction(async (tables) => {
      for (let i = 0; i < 25; i++) await ended(tables, `t${i}`, 0, blob);
      await tables.results.collect(null, 1000);
    });
    clock.advance(2 * HOUR_MS);
    await Promise.all(planes.map(({ context }) => sweepRetention(context)));
    expect(await tasks()).toEqual([]);
    expect(planes.reduce((sum, { context }) => sum + context.counters.get('tasks_removed'), 0)).toBe(25);
    expect(await Promise.all(orphans.map(({ ref }) => there(ref)))).toEqual(Array(250).fill(false));
  });

  it('runs regularly while a server runs', async () => {
    const running = await plane(null);
    const orphan = await blobOfAge('orphan', 9);
    let removed: () => void = () => {};
    const gone = new Promise<void>((resolve) => (removed = resolve));
    const remove = blobs.remove.bind(blobs);
    blobs.remove = async (ref, beforeMs) => {
      await remove(ref, beforeMs);
      removed();
    };
    const end = running.run();
    clock.advance(599_000);
    expect(await there(orphan.ref)).toBe(true);
    clock.advance(1_000);
    await gone;
    expect(await there(orphan.ref)).toBe(false);
    running.close();
    await end;
    await running.finish();
  });
});
