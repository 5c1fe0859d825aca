import { FloeError, nextEventLoopTurn, onAbort, VirtualClock } from '@floe-rl/core';
import { type EngineInfo, engineSpecSchema, type Heartbeat, type Lease } from '@floe-rl/core/schema';
import { silentLogger } from '@floe-rl/observe';
import { beforeEach, describe, expect, it } from 'vitest';
import { ServerCalls } from '../../../src/gateway/processes/server-calls.ts';
import { LEASE, NO_CHANGES } from '../node/node-bench.ts';

type Beat = Omit<Heartbeat, 'instance'>;
type LeaseCall = {
  readonly slots: number;
  readonly signal: AbortSignal | undefined;
  answer(leases: Lease[]): void;
  fail(error: Error): void;
};

const IDLE = { init_inflight: 0, ready_depth: 0, run_inflight: 0, postrun_queue_depth: 0, postrun_inflight: 0 };
const never = new AbortController().signal;

let clock: VirtualClock;
let leaseCalls: LeaseCall[];
let beats: Beat[];
let failures: FloeError[];
let calls: ServerCalls;
beforeEach(() => {
  clock = new VirtualClock();
  [leaseCalls, beats, failures] = [[], [], []];
  calls = callsOfTwo();
});

function callsOfTwo(engines: unknown = null): ServerCalls {
  return new ServerCalls({
    api: {
      register: async (description) => description as never,
      heartbeat: async (beat) => {
        beats.push(beat);
        const failure = failures.shift();
        if (failure !== undefined) throw failure;
        return { ...NO_CHANGES, engines: engines as never };
      },
      lease: ({ slots }, signal) =>
        new Promise((resolve, reject) => {
          leaseCalls.push({ slots, signal, answer: resolve, fail: reject });
          onAbort(signal, () => reject(signal?.reason));
        }),
    },
    clock,
    log: silentLogger,
    sizes: { max_init_workers: 2, ready_size: 2, max_run_workers: 2, max_postrun_workers: 2 },
    states: () => [
      { state: 'running', ends: 0 },
      { state: 'running', ends: 1 },
    ],
  });
}

function leasesOf(...ids: readonly string[]): Lease[] {
  return ids.map((session_id) => ({ ...LEASE, session_id }));
}

function beatOf(sessions: readonly string[] = [], fields: Partial<Beat> = {}): Beat {
  const progress = (session_id: string): Beat['sessions'][number] => ({
    session_id,
    epoch: 1,
    status: 'RUNNING',
    turns: 0,
    sampled_tokens: 0,
  });
  return { metrics: IDLE, refuses: null, sessions: sessions.map(progress), engines: null, wait_seconds: 0, ...fields };
}

const request = (slots: number) => ({ slots, wait_seconds: 20 });
const idsOf = (leases: readonly Lease[]): string[] => leases.map(({ session_id }) => session_id);

describe('leases of a node with two processes', () => {
  it('go to the process with the fewest sessions', async () => {
    const both = [calls.lease(0, request(4), never), calls.lease(1, request(4), never)];
    leaseCalls[0]?.answer(leasesOf('a', 'b', 'c'));
    expect((await Promise.all(both)).map(idsOf)).toEqual([['a', 'c'], ['b']]);

    const next = [calls.lease(1, request(3), never), calls.lease(0, request(2), never)];
    leaseCalls[1]?.answer(leasesOf('d', 'e'));
    expect((await Promise.all(next)).map(idsOf)).toEqual([['d'], ['e']]);
  });

  it('are never more than a process has requested; the next request gets the others', async () => {
    const small = calls.lease(0, request(1), never);
    leaseCalls[0]?.answer(leasesOf('a', 'b'));
    expect(idsOf(await small)).toEqual(['a']);
    expect(idsOf(await calls.lease(1, request(2), never))).toEqual(['b']);
  });

  it('are requested for all processes together, with one call at a time', async () => {
    const first = calls.lease(0, request(2), never);
    const second = calls.lease(1, request(3), never);
    leaseCalls[0]?.answer(leasesOf('a'));
    await first;
    void calls.lease(0, request(1), never);
    expect(leaseCalls.map(({ slots }) => slots)).toEqual([2, 3]);
    leaseCalls[1]?.answer([]);
    expect(await second).toEqual([]);
    void calls.lease(1, request(5), never);
    expect(leaseCalls.map(({ slots }) => slots)).toEqual([2, 3, 5]);
  });

  it('are not requested any more when no process takes sessions', async () => {
    const stop = new AbortController();
    const both = [0, 1].map((index) => calls.lease(index, request(1), stop.signal));
    stop.abort();
    expect(await Promise.all(both)).toEqual([[], []]);
    expect(leaseCalls.map(({ signal }) => signal?.aborted)).toEqual([true]);
  });

  it('end with the error of the server, which every waiting process gets', async () => {
    const both = [0, 1].map((index) => calls.lease(index, request(1), never));
    leaseCalls[0]?.fail(new FloeError('not_found', 'no such node'));
    for (const waiting of both) await expect(waiting).rejects.toMatchObject({ code: 'not_found' });
  });
});

describe('heartbeats of a node with two processes', () => {
  it('have the sessions of one process and the sums of both', async () => {
    await calls.heartbeat(0, beatOf(['a'], { metrics: { ...IDLE, run_inflight: 1 } }), 5, never);
    await calls.heartbeat(1, beatOf(['b'], { metrics: { ...IDLE, run_inflight: 2 }, refuses: 'full' }), 5, never);
    expect(beats[1]?.sessions.map(({ session_id }) => session_id)).toEqual(['b']);
    expect(beats[1]).toMatchObject({
      refuses: null,
      metrics: {
        run_inflight: 3,
        processes: [
          { state: 'running', ends: 0, run_inflight: 1, refuses: null },
          { state: 'running', ends: 1, run_inflight: 2, refuses: 'full' },
        ],
      },
    });
    await calls.heartbeat(0, beatOf([], { refuses: 'also full' }), 5, never);
    expect(beats[2]?.refuses).toBe('also full');
  });

  it('report engines as applied when both have applied them, with the slots of both', async () => {
    const info = { engine_id: 'e', healthy: true, inflight: 2, max_concurrency: 4 } as EngineInfo;
    const report = (revision: number, infos: readonly EngineInfo[]): Partial<Beat> => ({
      engines: { revision, heard: revision, info: [...infos], problems: [], unpaused: [] },
    });
    await calls.heartbeat(0, beatOf([], report(3, [{ ...info, healthy: false }])), 5, never);
    await calls.heartbeat(1, beatOf([], report(2, [info])), 5, never);
    expect(beats[1]?.engines).toMatchObject({
      revision: 2,
      heard: 2,
      info: [{ engine_id: 'e', healthy: true, inflight: 4, max_concurrency: 8 }],
    });
  });

  it('return a share of each limit of the engines', async () => {
    const spec = engineSpecSchema.parse({ base_url: 'http://127.0.0.1:1', max_concurrency: 5 });
    calls = callsOfTwo({ revision: 1, engines: [spec], removed: [] });
    const reply = await calls.heartbeat(1, beatOf(), 5, never);
    expect(reply.engines?.engines).toMatchObject([{ max_concurrency: 2 }]);
  });
});

describe('the sessions of a process that has ended', () => {
  it('are reported as lost, unless a heartbeat has shown their end', async () => {
    const leased = calls.lease(0, request(3), never);
    leaseCalls[0]?.answer(leasesOf('a', 'b', 'c'));
    await leased;
    await calls.heartbeat(0, beatOf(['a', 'b']), 5, never);
    await calls.heartbeat(0, beatOf(['a']), 5, never);
    calls.lose(0);
    await nextEventLoopTurn();
    expect(beats.at(-1)?.lost?.map(({ session_id }) => session_id)).toEqual(['a', 'c']);
  });

  it('are reported until the server accepts the report', async () => {
    const leased = calls.lease(1, request(1), never);
    leaseCalls[0]?.answer(leasesOf('a'));
    await leased;
    failures.push(new FloeError('peer_unreachable', 'down'), new FloeError('peer_unreachable', 'down'));
    calls.lose(1);
    for (let tries = 0; tries < 3; tries++) {
      await nextEventLoopTurn();
      clock.advance(5_000);
    }
    await calls.close();
    expect(beats.map(({ lost }) => lost)).toEqual(Array.from({ length: 3 }, () => [{ session_id: 'a', epoch: 1 }]));
  });
});
