import { appendFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { runtimeSpecSchema } from '@floe-rl/core/schema';
import type { Runtime, RuntimeSnapshot } from '@floe-rl/sandbox';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import { bubblewrapMissing, processesThatMount, Workbench } from '../../../../../sandbox/test/backends/workbench.ts';
import { PreparedSnapshots, type PreparedStart } from '../../../../src/gateway/session/prepared-snapshots.ts';
import { Sandboxes, StartLimits } from '../../../../src/gateway/session/sandbox.ts';
import { ENDED_WELL, runtimeOf, settle } from '../../../gateway/session-bench.ts';

const never = new AbortController().signal;

type FakeSnapshot = RuntimeSnapshot & { released: boolean };

/** Makes a store of prepared snapshots with these limits. Its sandboxes are fakes that only count snapshots and starts. */
function fakes(maxCount: number, maxBytes: number) {
  const taken: FakeSnapshot[] = [];
  const starts: PreparedStart[] = [];
  const prepared = new PreparedSnapshots({ maxCount, maxBytes, onStart: (how) => starts.push(how) });
  const runtimeWith = (bytes: number): Runtime => ({
    ...runtimeOf(async () => ENDED_WELL, new Set()),
    snapshot: async () => {
      const snapshot: FakeSnapshot = {
        backend: 'bubblewrap',
        sandbox: `s${taken.length}`,
        bytes,
        released: false,
        release: async () => {
          snapshot.released = true;
        },
      };
      taken.push(snapshot);
      return snapshot;
    },
  });
  const start = (
    key: string,
    parts: {
      readonly bytes?: number;
      readonly prepare?: () => Promise<Runtime>;
      readonly reuse?: (snapshot: RuntimeSnapshot) => Promise<Runtime>;
    } = {},
  ): Promise<Runtime> => {
    const runtime = runtimeWith(parts.bytes ?? 1);
    const { prepare = async () => runtime, reuse = async () => runtime } = parts;
    return prepared.start(key, { prepare, reuse, onWait: () => {} }, never);
  };
  return { prepared, taken, starts, start };
}

describe('PreparedSnapshots', () => {
  it('prepares the first sandbox while equal ones wait, and starts these from its snapshot', async () => {
    const { start, starts, taken } = fakes(2, 100);
    let finish = (_runtime: Runtime): void => {};
    const runtime = runtimeOf(async () => ENDED_WELL, new Set());
    const first = start('a', {
      prepare: () =>
        new Promise((resolve) => {
          finish = resolve;
        }),
    });
    const others = [start('a'), start('a')];
    const different = start('b');
    await different;
    expect(starts).toEqual(['kept']);
    finish({ ...runtime, snapshot: (await different).snapshot });
    await Promise.all([first, ...others]);
    expect(starts.toSorted()).toEqual(['kept', 'kept', 'reused', 'reused']);
    expect(taken).toHaveLength(2);
  });

  it('releases the snapshot that was used least recently when there are too many or they are too large', async () => {
    const { start, taken, starts, prepared } = fakes(2, 100);
    await start('a');
    await start('b');
    await start('a');
    await start('c');
    expect(taken.map(({ released }) => released)).toEqual([false, true, false]);
    await start('d', { bytes: 100 });
    expect(taken.map(({ released }) => released)).toEqual([true, true, true, false]);
    expect(prepared.sandboxes).toEqual(['s3']);
    await start('e', { bytes: 101 });
    await start('e', { bytes: 101 });
    expect(taken.map(({ released }) => released)).toEqual([true, true, true, false, true]);
    expect(starts.slice(-2)).toEqual(['alone', 'alone']);
    await prepared.close();
    expect(taken.every(({ released }) => released)).toBe(true);
  });

  it('does not release a snapshot while a sandbox is started from it', async () => {
    const { start, taken } = fakes(1, 100);
    await start('a');
    let finish = (): void => {};
    const runtime = runtimeOf(async () => ENDED_WELL, new Set());
    const starting = start('a', {
      reuse: () =>
        new Promise((resolve) => {
          finish = () => resolve(runtime);
        }),
    });
    await start('b');
    expect(taken[0]?.released).toBe(false);
    finish();
    await starting;
    expect(taken[0]?.released).toBe(true);
  });

  it('prepares a sandbox that cannot be started from the snapshot, and those that waited for a failed preparation', async () => {
    const { start, starts, taken } = fakes(2, 100);
    await start('a');
    await start('a', { reuse: () => Promise.reject(new Error('the image has changed')) });
    expect(taken.map(({ released }) => released)).toEqual([true, false]);
    let fail = (_error: Error): void => {};
    const failing = start('b', {
      prepare: () =>
        new Promise((_resolve, reject) => {
          fail = reject;
        }),
    });
    const waiting = start('b');
    await settle();
    fail(new Error('no space'));
    await expect(failing).rejects.toThrow('no space');
    await waiting;
    expect(starts).toEqual(['kept', 'kept', 'kept']);
    const runtime = runtimeOf(async () => ENDED_WELL, new Set());
    expect(await start('c', { prepare: async () => runtime })).toBe(runtime);
    expect(starts.at(-1)).toBe('alone');
  });
});

describeIf(await bubblewrapMissing(), 'sandboxes with share_prepared', () => {
  let bench: Workbench;
  let upload: string;
  beforeAll(async () => {
    bench = await Workbench.open();
    upload = join(bench.dir, 'upload');
    mkdirSync(upload);
    writeFileSync(join(upload, 'data'), 'first\n');
  });
  afterAll(() => bench.close());

  it('get the files of one preparation, change only their own, and are prepared again when an upload changes', async () => {
    const starts: PreparedStart[] = [];
    const prepared = new PreparedSnapshots({ maxCount: 4, maxBytes: 2 ** 30, onStart: (how) => starts.push(how) });
    const sandboxes = new Sandboxes({
      providers: new Map([['bubblewrap', bench.provider('bubblewrap')]]),
      defaultBackend: 'bubblewrap',
      allowLocal: false,
      uploadRoots: [bench.dir],
      startLimits: new StartLimits({ bubblewrap: 1 }),
      prepared,
    });
    const spec = runtimeSpecSchema.parse({
      share_prepared: true,
      prepare: [
        { type: 'upload_dir', source: upload, target: 'up' },
        { type: 'exec', command: 'head -c 8 /dev/urandom | od -An -tx1 >id; echo home >~/h' },
      ],
    });
    let count = 0;
    const start = async (): Promise<Runtime> => {
      const permit = await sandboxes.awaitPermit(spec, never);
      const request = { name: `p${count++}`, spec, proxy: null, readOnlyMounts: [] };
      return sandboxes.start(request, spec.prepare, permit, never);
    };
    const read = async (runtime: Runtime): Promise<string> =>
      (await runtime.exec({ command: 'cat id up/data ~/h' }, never)).stdout;
    const group = await Promise.all([start(), start(), start(), start()]);
    const [first = '', ...others] = await Promise.all(group.map(read));
    expect(first).toMatch(/^( [0-9a-f]{2}){8}\nfirst\nhome\n$/);
    expect(others).toEqual([first, first, first]);
    expect(starts.toSorted()).toEqual(['kept', 'reused', 'reused', 'reused']);
    await Promise.all(group.map((runtime) => runtime.exec({ command: 'echo mine >id; rm -r up ~/h' }, never)));
    await Promise.all(group.map((runtime) => runtime.stop()));
    const later = await start();
    expect(await read(later)).toBe(first);
    appendFileSync(join(upload, 'data'), 'second\n');
    const changed = await start();
    expect(await read(changed)).toContain('first\nsecond\nhome\n');
    expect(await read(changed)).not.toContain(first.slice(0, 24));
    expect(starts.slice(4)).toEqual(['reused', 'kept']);
    expect(readFileSync(join(upload, 'data'), 'utf8')).toBe('first\nsecond\n');
    await Promise.all([later.stop(), changed.stop(), prepared.close()]);
    expect(await bench.sessionDirs()).toEqual([]);
    expect(await processesThatMount(bench.stateDir)).toEqual([]);
  });
});
