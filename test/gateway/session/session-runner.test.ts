import { describe, expect, it } from 'vitest';
import { FloeError } from '../../../src/core/errors.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { Transcript } from '../../tokens/transcript.ts';
import { bench, ENDED_WELL, runtimeOf, settle, untilAborted } from '../bench.ts';

const hangingEval = {
  start: (purpose: 'agent' | 'eval', _: unknown, signal: AbortSignal) =>
    purpose === 'eval' ? untilAborted(signal) : Promise.resolve(runtimeOf(async () => ENDED_WELL, new Set())),
};

describe("the evaluator's fresh runtime", () => {
  it('that never gets ready costs the evaluation its time budget, not the session its end', async () => {
    const { attempt, deps, clock } = bench(hangingEval);
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(100_000);
    const result = await ended;
    expect(result?.summary).toMatchObject({ outcome: 'verifier_error', reward: null });
    expect(result?.summary.error?.code).toBe('deadline_exceeded');
  });

  it('is given up when nobody needs it any more', async () => {
    const { attempt, deps } = bench({ ...hangingEval, session: { completionCount: 0 } });
    const result = await runSession(attempt, deps);
    expect(result?.summary).toMatchObject({ outcome: 'no_completions', reward: null });
  });

  it('is stopped with the session when it gets ready too late', async () => {
    let ready = (): void => {};
    const { attempt, deps, alive } = bench({
      session: { completionCount: 0 },
      start: async (purpose) => {
        if (purpose === 'eval') await new Promise<void>((resolve) => (ready = resolve));
        return runtimeOf(async () => ENDED_WELL, alive);
      },
    });
    const ended = runSession(attempt, deps);
    await settle();
    ready();
    await ended;
    expect(alive.size).toBe(0);
  });
});

describe('an attempt that has begun', () => {
  it('is on the disk before its sandbox is made', async () => {
    const order: string[] = [];
    const { attempt, deps, alive } = bench({
      begun: async () => void order.push('recorded'),
      start: async () => {
        order.push('sandbox');
        return runtimeOf(async () => ENDED_WELL, alive);
      },
    });
    await runSession(attempt, deps);
    expect(order.slice(0, 2)).toEqual(['recorded', 'sandbox']);
  });

  it('but cannot be recorded runs nothing, and is worth another try', async () => {
    let started = 0;
    const { attempt, deps } = bench({
      begun: async () => {
        throw new FloeError('store_unavailable', 'the disk is full');
      },
      start: async () => {
        started++;
        throw new Error('must not start');
      },
    });
    expect((await runSession(attempt, deps))?.summary).toMatchObject({
      outcome: 'infra_error',
      error: { code: 'store_unavailable' },
    });
    expect(started).toBe(0);
  });
});

describe('an attempt that loses its lease', () => {
  it('leaves what was recorded, with nothing of it trained', async () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0);
    t.call(t.after(h0, c0));
    const { attempt, deps, alive } = bench({
      exec: (signal) => {
        attempt.stop('lease_lost');
        return untilAborted(signal);
      },
      session: { completions: () => t.completions, completionCount: 2 },
    });
    const remains = await runSession(attempt, deps);
    expect(remains?.summary).toMatchObject({
      outcome: 'infra_error',
      completion_count: 2,
      reward: null,
      error: { code: 'stale_epoch' },
    });
    expect(JSON.parse(String(remains?.completions))).toHaveLength(2);
    expect(JSON.parse(String(remains?.trajectory))).toMatchObject({ status: 'ERROR' });
    expect(alive.size).toBe(0);
  });

  it('leaves nothing when nothing was recorded', async () => {
    const { attempt, deps } = bench({
      exec: (signal) => {
        attempt.stop('lease_lost');
        return untilAborted(signal);
      },
    });
    expect(await runSession(attempt, deps)).toBeNull();
  });
});

describe('the end of a session', () => {
  it('stops the sandbox although the proxy session does not close cleanly', async () => {
    let closes = 0;
    const { attempt, deps, alive } = bench({
      session: {
        close: async () => {
          if (++closes > 1) throw new Error('close failed');
        },
      },
    });
    expect((await runSession(attempt, deps))?.summary.outcome).toBe('completed');
    expect(closes).toBeGreaterThan(1);
    expect(alive.size).toBe(0);
  });

  it('does not wait for ever for a sandbox that does not go', async () => {
    const { attempt, deps, clock, alive } = bench({
      task: { evaluator: null },
      start: async () => ({ ...runtimeOf(async () => ENDED_WELL, alive), stop: () => new Promise<void>(() => {}) }),
    });
    const ended = runSession(attempt, deps);
    for (let i = 0; i < 5; i++) await settle();
    clock.advance(30_000);
    expect((await ended)?.summary.outcome).toBe('completed');
  });

  it('aborts its engine calls as soon as it is cancelled, while its processes still end', async () => {
    let closed = false;
    let end = (): void => {};
    const { attempt, deps } = bench({
      exec: (signal) =>
        new Promise((_, reject) => {
          end = () => reject(signal.reason);
        }),
      session: {
        close: async () => {
          closed = true;
        },
      },
    });
    const ended = runSession(attempt, deps);
    await settle();
    expect(closed).toBe(false);
    attempt.stop('cancelled');
    await settle();
    expect(closed).toBe(true);
    end();
    expect(await ended).toBeNull();
  });
});
