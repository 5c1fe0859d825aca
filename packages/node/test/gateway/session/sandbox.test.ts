import { VirtualClock } from '@floe-rl/core';
import { type RuntimeBackend, runtimeSpecSchema } from '@floe-rl/core/schema';
import type { RuntimeProblem, RuntimeProvider } from '@floe-rl/sandbox';
import { describe, expect, it } from 'vitest';
import { Sandboxes, StartLimits } from '../../../src/gateway/session/sandbox.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { bench, ENDED_WELL, runtimeOf, settle } from '../session-bench.ts';

const never = new AbortController().signal;

describe('StartLimits', () => {
  it('limits the concurrent starts of one back end and of no other back end', async () => {
    const limits = new StartLimits({ bubblewrap: 1 });
    const end = await limits.acquire('bubblewrap', never);
    await Promise.all([limits.acquire('local', never), limits.acquire('local', never)]);
    let second = false;
    const waiting = limits.acquire('bubblewrap', never).then((release) => {
      second = true;
      return release;
    });
    await settle();
    expect(second).toBe(false);
    expect(limits.counts().get('bubblewrap')).toEqual({ starting: 1, waiting: 1, limit: 1 });
    expect(limits.counts().get('local')).toEqual({ starting: 2, waiting: 0, limit: null });
    end();
    end();
    (await waiting)();
    expect(limits.counts().get('bubblewrap')).toEqual({ starting: 0, waiting: 0, limit: 1 });
  });

  it('returns a permit that is granted after the signal has aborted', async () => {
    const limits = new StartLimits({ local: 1 });
    const end = await limits.acquire('local', never);
    const waiter = new AbortController();
    const late = limits.acquire('local', waiter.signal);
    end();
    waiter.abort(new Error('cancelled'));
    await expect(late).rejects.toThrow('cancelled');
    (await limits.acquire('local', never))();
    expect(limits.counts().get('local')).toEqual({ starting: 0, waiting: 0, limit: 1 });
  });
});

describe('StartLimits with a rate', () => {
  /** Requests `count` starts, and returns the times in milliseconds at which they were permitted. */
  function request(limits: StartLimits, clock: VirtualClock, count: number, signal = never): number[] {
    const times: number[] = [];
    for (let i = 0; i < count; i++) {
      const permitted = (): void => void times.push(clock.monotonicMs() - startMs);
      limits.acquire('local', signal).then(permitted, () => {});
    }
    return times;
  }

  async function pass(clock: VirtualClock, ms: number): Promise<void> {
    for (let passed = 0; passed < ms; passed += 100) {
      await settle();
      clock.advance(100);
    }
    await settle();
  }

  const clock = new VirtualClock();
  const startMs = clock.monotonicMs();

  it('spaces starts evenly, and those of other back ends not at all', async () => {
    const limits = new StartLimits({}, { local: 2 }, clock);
    const from = clock.monotonicMs() - startMs;
    const times = request(limits, clock, 4);
    await Promise.all([limits.acquire('bubblewrap', never), limits.acquire('bubblewrap', never)]);
    await settle();
    expect(limits.counts().get('local')).toEqual({ starting: 1, waiting: 3, limit: null });
    await pass(clock, 1_500);
    expect(times.map((ms) => ms - from)).toEqual([0, 500, 1_000, 1_500]);
    expect(limits.counts().get('local')).toEqual({ starting: 4, waiting: 0, limit: null });
    await pass(clock, 10_000);
    // Unused time is not saved for a burst of starts.
    const again = request(limits, clock, 2);
    await pass(clock, 1_000);
    expect((again[1] ?? 0) - (again[0] ?? 0)).toBe(500);
  });

  it('loses no time to starts that were given up while they waited', async () => {
    const limits = new StartLimits({ local: 10 }, { local: 1 }, clock);
    const from = clock.monotonicMs() - startMs;
    const givenUp = new AbortController();
    const first = request(limits, clock, 1);
    const times = request(limits, clock, 5, givenUp.signal);
    await settle();
    givenUp.abort(new Error('cancelled'));
    const last = request(limits, clock, 1);
    await pass(clock, 1_500);
    expect([first, times, last].map((all) => all.map((ms) => ms - from))).toEqual([[0], [], [1_000]]);
    expect(limits.counts().get('local')).toEqual({ starting: 2, waiting: 0, limit: 10 });
  });
});

describe('a session that waits for a start permit', () => {
  it('uses none of its time budget', async () => {
    const { attempt, deps, clock } = bench({ startLimit: 1, task: { evaluator: null, budgets: { init: 10 } } });
    const end = await deps.sandboxes.awaitPermit(attempt.spec, never);
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(1_000_000);
    expect(attempt.timer.usedMs()).toBe(0);
    end();
    expect((await ended)?.summary).toMatchObject({ outcome: 'completed' });
  });

  it('ends when it is cancelled and releases its worker and permit', async () => {
    const { attempt, deps } = bench({ startLimit: 1, task: { evaluator: null } });
    const end = await deps.sandboxes.awaitPermit(attempt.spec, never);
    const ended = runSession(attempt, deps);
    await settle();
    attempt.stop('cancelled');
    expect(await ended).toBeNull();
    expect(deps.pools.metrics().init_inflight).toBe(0);
    end();
    expect(deps.sandboxes.startCounts().get('local')).toEqual({ starting: 0, waiting: 0, limit: 1 });
  });

  it('uses none of its time budget when the permit is for its evaluation', async () => {
    const { attempt, deps, clock, alive } = bench({
      startLimit: 1,
      start: async () => runtimeOf(async () => ENDED_WELL, alive),
    });
    let end = (): void => {};
    const first = await deps.sandboxes.awaitPermit(attempt.spec, never);
    const ended = runSession(attempt, deps);
    await settle();
    // Only one sandbox may start at a time. This request for a permit is made before the one for the evaluator's sandbox, so the evaluator's
    // sandbox must wait until `end` is called.
    const second = deps.sandboxes.awaitPermit(attempt.spec, never).then((permit) => {
      end = permit;
    });
    await settle();
    first();
    await settle();
    await second;
    clock.advance(1_000_000);
    await settle();
    expect(attempt.status).toBe('POSTRUN');
    end();
    expect((await ended)?.summary).toMatchObject({ outcome: 'completed', reward: 0 });
    expect(deps.sandboxes.startCounts().get('local')).toEqual({ starting: 0, waiting: 0, limit: 1 });
    expect(alive.size).toBe(0);
  });

  it('returns the permit when the start fails', async () => {
    const { attempt, deps } = bench({
      startLimit: 1,
      start: async () => {
        throw new Error('no capacity');
      },
    });
    await runSession(attempt, deps);
    (await deps.sandboxes.awaitPermit(attempt.spec, never))();
    expect(deps.sandboxes.startCounts().get('local')).toEqual({ starting: 0, waiting: 0, limit: 1 });
  });
});

describe('the back end of a sandbox', () => {
  type Provider = { readonly backend: RuntimeBackend; readonly problem?: RuntimeProblem };

  /** Starts a sandbox of `backend` on a node with the given providers. Resolves with the started back ends. */
  async function startOn(backend: RuntimeBackend, providers: readonly Provider[], allowLocal = false) {
    const started: RuntimeBackend[] = [];
    const provider = ({ backend, problem }: Provider) => ({
      backend,
      probe: async () => problem ?? null,
      start: async () => {
        started.push(backend);
        return runtimeOf(async () => ENDED_WELL, new Set());
      },
    });
    const entries = providers.map((one) => [one.backend, provider(one) as unknown as RuntimeProvider] as const);
    const sandboxes = new Sandboxes({
      providers: new Map(entries),
      defaultBackend: 'bubblewrap',
      allowLocal,
      uploadRoots: [],
      startLimits: new StartLimits({}),
    });
    const spec = runtimeSpecSchema.parse({ backend });
    const request = { name: 'ses_1-1-agent', spec, proxy: null, readOnlyMounts: [] };
    await sandboxes.start(request, [], () => {}, never);
    return started;
  }

  const both: readonly Provider[] = [{ backend: 'bubblewrap' }, { backend: 'local' }];

  it('is the one that the task requests', async () => {
    expect(await startOn('bubblewrap', both)).toEqual(['bubblewrap']);
    expect(await startOn('local', both, true)).toEqual(['local']);
  });

  it('is never `local` on a node that isolates sessions, unless its operator allows that', async () => {
    await expect(startOn('local', both)).rejects.toMatchObject({
      code: 'runtime_unavailable',
      message: expect.stringContaining('--allow-local'),
    });
  });

  it('is refused with its remedy when it does not work on the node', async () => {
    const problem = { problem: 'no user namespaces are left', remedy: 'raise the limit' };
    await expect(startOn('bubblewrap', [{ backend: 'bubblewrap', problem }])).rejects.toMatchObject({
      code: 'runtime_unavailable',
      message: expect.stringContaining('no user namespaces are left. Remedy: raise the limit'),
    });
  });
});
