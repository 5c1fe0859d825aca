import { describe, expect, it } from 'vitest';
import { StartLimits } from '../../../src/gateway/node/start-limits.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { bench, ENDED_WELL, runtimeOf, settle } from '../bench.ts';

const never = new AbortController().signal;

describe('StartLimits', () => {
  it('lets so many of a back end start at a time, and any number of the others', async () => {
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

  it('lets go of a turn that comes when nobody wants it any more', async () => {
    const limits = new StartLimits({ local: 1 });
    const end = await limits.acquire('local', never);
    const gone = new AbortController();
    const late = limits.acquire('local', gone.signal);
    end();
    gone.abort(new Error('cancelled'));
    await expect(late).rejects.toThrow('cancelled');
    (await limits.acquire('local', never))();
    expect(limits.counts().get('local')).toEqual({ starting: 0, waiting: 0, limit: 1 });
  });
});

describe('a session that waits for its turn to start', () => {
  it('spends nothing of its budget', async () => {
    const { attempt, deps, clock } = bench({ startLimit: 1, task: { evaluator: null, budgets: { init: 10 } } });
    const end = await deps.sandboxes.turn(attempt.spec, never);
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(1_000_000);
    expect(attempt.timer.usedMs()).toBe(0);
    end();
    expect((await ended)?.summary).toMatchObject({ outcome: 'completed' });
  });

  it('ends at once when it is cancelled, and its worker and turn are free', async () => {
    const { attempt, deps } = bench({ startLimit: 1, task: { evaluator: null } });
    const end = await deps.sandboxes.turn(attempt.spec, never);
    const ended = runSession(attempt, deps);
    await settle();
    attempt.stop('cancelled');
    expect(await ended).toBeNull();
    expect(deps.pools.metrics().init_inflight).toBe(0);
    end();
    expect(deps.sandboxes.starts().get('local')).toEqual({ starting: 0, waiting: 0, limit: 1 });
  });

  it('for its grading spends nothing either', async () => {
    const { attempt, deps, clock, alive } = bench({
      startLimit: 1,
      start: async () => runtimeOf(async () => ENDED_WELL, alive),
    });
    let end = (): void => {};
    const first = await deps.sandboxes.turn(attempt.spec, never);
    const ended = runSession(attempt, deps);
    await settle();
    // Another session's start comes before that of this one's evaluator.
    const second = deps.sandboxes.turn(attempt.spec, never).then((turn) => {
      end = turn;
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
    expect(deps.sandboxes.starts().get('local')).toEqual({ starting: 0, waiting: 0, limit: 1 });
    expect(alive.size).toBe(0);
  });

  it('ends its turn when the start fails', async () => {
    const { attempt, deps } = bench({
      startLimit: 1,
      start: async () => {
        throw new Error('no room');
      },
    });
    await runSession(attempt, deps);
    (await deps.sandboxes.turn(attempt.spec, never))();
    expect(deps.sandboxes.starts().get('local')).toEqual({ starting: 0, waiting: 0, limit: 1 });
  });
});
