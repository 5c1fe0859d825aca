import { describe, expect, it } from 'vitest';
import { StartLimits } from '../../../src/gateway/session/sandbox.ts';
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
    // The start of another session's sandbox is granted before the start of the runtime for this session's evaluator.
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
