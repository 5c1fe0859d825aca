import { createHash } from 'node:crypto';
import { rm, utimes, writeFile } from 'node:fs/promises';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { BlobStore } from '../../../src/store/index.ts';

/**
 * An empty blob store to test (`store`), a function that opens the same place once more (`again`), and a function that returns the path of
 * a blob's file (`fileOf`).
 */
export type BlobPlace = {
  readonly store: BlobStore;
  readonly again: () => Promise<BlobStore>;
  readonly fileOf: (ref: string) => string;
};

const HOUR_MS = 3_600_000;

/** Defines the tests that every implementation of `BlobStore` must pass. `open` returns an empty blob store and the paths of its files. */
export function describeBlobs(name: string, open: () => Promise<BlobPlace>): void {
  describe(name, () => {
    let place: BlobPlace;
    beforeEach(async () => {
      place = await open();
    });
    afterEach(() => place.store.close());
    keepingTests(() => place);
    cleaningTests(() => place);
  });
}

function keepingTests(place: () => BlobPlace): void {
  it('returns the bytes unchanged, under the hash of their content', async () => {
    await fc.assert(
      fc.asyncProperty(fc.uint8Array({ maxLength: 2_000 }), async (array) => {
        const bytes = Buffer.from(array);
        const blob = await place().store.put(bytes);
        expect(blob).toEqual({ ref: createHash('sha256').update(bytes).digest('hex'), bytes: bytes.length });
        expect(await place().store.get(blob.ref)).toEqual(bytes);
      }),
      { numRuns: 20, examples: [[new Uint8Array()]] },
    );
  });

  it('keeps them for the next process', async () => {
    const { ref } = await place().store.put(Buffer.from('precious'));
    const other = await place().again();
    expect((await other.get(ref)).toString()).toBe('precious');
    await other.close();
  });

  it('returns many megabytes completely', async () => {
    const bytes = Buffer.alloc(12_000_000, 'some trajectory ');
    const { ref } = await place().store.put(bytes);
    expect((await place().store.get(ref)).equals(bytes)).toBe(true);
  });

  it('stores equal bytes once, also when they are put concurrently or repeatedly', async () => {
    const blobs = await Promise.all(Array.from({ length: 20 }, () => place().store.put(Buffer.from('same'))));
    blobs.push(await place().store.put(Buffer.from('same')));
    expect(new Set(blobs.map((blob) => blob.ref)).size).toBe(1);
    expect(await namesOf(place().store)).toEqual([blobs[0]?.ref]);
  });

  it('reports damaged and missing bytes, and never returns them', async () => {
    const { ref } = await place().store.put(Buffer.from('precious'));
    await writeFile(place().fileOf(ref), 'previous');
    await expect(place().store.get(ref)).rejects.toMatchObject({ code: 'corrupt_record', details: { ref } });
    await rm(place().fileOf(ref));
    await expect(place().store.get(ref)).rejects.toMatchObject({ code: 'corrupt_record', details: { ref } });
  });

  it('refuses a name that is not a hash', async () => {
    for (const ref of ['../floe.db', '', 'A'.repeat(64), `${'0'.repeat(64)}/..`]) {
      await expect(place().store.get(ref)).rejects.toMatchObject({ code: 'internal' });
      await expect(place().store.remove(ref, Date.now())).rejects.toMatchObject({ code: 'internal' });
    }
  });
}

function cleaningTests(place: () => BlobPlace): void {
  it('removes a blob, also repeatedly without an error', async () => {
    const { store } = place();
    const { ref } = await store.put(Buffer.from('short-lived'));
    const laterMs = Date.now() + HOUR_MS;
    await store.remove(ref, laterMs);
    await store.remove(ref, laterMs);
    await expect(store.get(ref)).rejects.toMatchObject({ code: 'corrupt_record' });
    expect((await store.put(Buffer.from('short-lived'))).ref).toBe(ref);
    expect((await store.get(ref)).toString()).toBe('short-lived');
  });

  it('keeps a blob that was stored once more after it was listed', async () => {
    const { store } = place();
    const { ref } = await store.put(Buffer.from('again'));
    const beforeMs = Date.now() - HOUR_MS;
    await age(place().fileOf(ref), beforeMs - HOUR_MS);
    expect(await namesOf(store, beforeMs)).toEqual([ref]);
    await store.put(Buffer.from('again'));
    await store.remove(ref, beforeMs);
    expect((await store.get(ref)).toString()).toBe('again');
  });

  it('lists only old blobs, and renews the age of one that is stored once more', async () => {
    const { store } = place();
    const refs = await Promise.all(['a', 'b', 'c'].map(async (text) => (await store.put(Buffer.from(text))).ref));
    const nowMs = Date.now();
    for (const ref of refs.slice(0, 2)) await age(place().fileOf(ref), nowMs - 2 * HOUR_MS);
    expect(await namesOf(store, nowMs - HOUR_MS)).toEqual(refs.slice(0, 2).sort());
    await store.put(Buffer.from('a'));
    expect(await namesOf(store, nowMs - HOUR_MS)).toEqual(refs.slice(1, 2));
    expect(await namesOf(store)).toEqual([...refs].sort());
  });
}

async function age(path: string, toMs: number): Promise<void> {
  await utimes(path, toMs / 1000, toMs / 1000);
}

/** Returns the names of all blobs that were last stored before `beforeMs`. */
async function namesOf(store: BlobStore, beforeMs = Number.MAX_SAFE_INTEGER): Promise<string[]> {
  const names: string[] = [];
  for await (const name of store.olderThan(beforeMs)) names.push(name);
  return names.sort();
}
