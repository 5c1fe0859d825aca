import { FloeError } from '@floe-rl/core';
import { expect, it } from 'vitest';
import { withTrajectories } from '../../../src/rollout/sessions/read-ahead.ts';
import { TrajectoryReader } from '../../../src/rollout/sessions/trajectory-reader.ts';
import type { BlobStore } from '../../../src/store/index.ts';

const row = (n: number, bytes = 10) => ({
  session_id: `s${n}`,
  cursor: n,
  trajectory_ref: `t${n}`,
  trajectory_bytes: bytes,
});
const rows = (count: number, bytes?: number) => Array.from({ length: count }, (_, n) => row(n, bytes));

/** A fake blob store whose reads end only when the test calls `end`. */
class SlowBlobs {
  readonly reads = new Map<string, PromiseWithResolversOf<Buffer>>();

  get(ref: string): Promise<Buffer> {
    const read = resolversOf<Buffer>();
    this.reads.set(ref, read);
    return read.promise;
  }

  readonly reader = new TrajectoryReader(this as unknown as BlobStore, () => {});

  end(n: number): void {
    this.reads.get(`t${n}`)?.resolve(Buffer.from(`text ${n}`));
  }
}

type PromiseWithResolversOf<T> = {
  readonly promise: Promise<T>;
  readonly resolve: (value: T) => void;
  readonly reject: (error: unknown) => void;
};

function resolversOf<T>(): PromiseWithResolversOf<T> {
  let [resolve, reject] = [(_: T) => {}, (_: unknown) => {}];
  const promise = new Promise<T>((onValue, onError) => {
    [resolve, reject] = [onValue, onError];
  });
  return { promise, resolve, reject };
}

/** Resolves when all work that does not wait for the test has been done. */
const settled = () => new Promise((resolve) => void setImmediate(resolve));

it('withTrajectories yields trajectories in the order of their rows, although later ones are read first', async () => {
  const blobs = new SlowBlobs();
  const list = withTrajectories(rows(3), blobs.reader);
  const first = list.next();
  await settled();
  for (const n of [2, 1, 0]) blobs.end(n);
  const texts = [await first, await list.next(), await list.next(), await list.next()].map(({ value }) =>
    value === undefined ? null : String(value[1]),
  );
  expect(texts).toEqual(['text 0', 'text 1', 'text 2', null]);
});

it('withTrajectories reads at most 64 trajectories ahead', async () => {
  const blobs = new SlowBlobs();
  const list = withTrajectories(rows(100), blobs.reader);
  const first = list.next();
  await settled();
  expect(blobs.reads.size).toBe(64);
  blobs.end(0);
  await first;
  void list.next();
  await settled();
  expect(blobs.reads.size).toBe(65);
});

it('withTrajectories reads no trajectory ahead while it reads a trajectory of 8 MiB', async () => {
  const blobs = new SlowBlobs();
  void withTrajectories(rows(100, 8 * 1024 * 1024), blobs.reader).next();
  await settled();
  expect([...blobs.reads.keys()]).toEqual(['t0']);
});

it('withTrajectories throws the error of a store when it is the turn of the row', async () => {
  const blobs = new SlowBlobs();
  const list = withTrajectories(rows(3), blobs.reader);
  const first = list.next();
  await settled();
  blobs.reads.get('t1')?.reject(new FloeError('store_unavailable', 'the disk is gone'));
  await settled();
  blobs.end(0);
  expect((await first).value?.[0].session_id).toBe('s0');
  await expect(list.next()).rejects.toMatchObject({ code: 'store_unavailable' });
});

it('withTrajectories closes its source when the reply ends early', async () => {
  const blobs = new SlowBlobs();
  let isClosed = false;
  async function* source() {
    try {
      yield* rows(100);
    } finally {
      isClosed = true;
    }
  }
  const list = withTrajectories(source(), blobs.reader);
  const first = list.next();
  await settled();
  blobs.end(0);
  await first;
  await list.return(undefined);
  expect(isClosed).toBe(true);
});
