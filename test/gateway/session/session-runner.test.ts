import { describe, expect, it } from 'vitest';
import { FloeError } from '../../../src/core/errors.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { Transcript } from '../../tokens/transcript.ts';
import { bench, ENDED_WELL, runtimeOf, settle, untilAborted } from '../session-bench.ts';

const hangingEval = {
  start: (purpose: 'agent' | 'eval', _: unknown, signal: AbortSignal) =>
    purpose === 'eval' ? untilAborted(signal) : Promise.resolve(runtimeOf(async () => ENDED_WELL, new Set())),
};

describe("the evaluator's fresh runtime", () => {
  it('fails the evaluation at its deadline when it never starts', async () => {
    const { attempt, deps, clock } = bench(hangingEval);
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(100_000);
    const result = await ended;
    expect(result?.summary).toMatchObject({ outcome: 'verifier_error', reward: null });
    expect(result?.summary.error?.code).toBe('deadline_exceeded');
  });

  it('is not waited for when the outcome needs no evaluation', async () => {
    const { attempt, deps } = bench({ ...hangingEval, session: { completionCount: 0 } });
    const result = await runSession(attempt, deps);
    expect(result?.summary).toMatchObject({ outcome: 'no_completions', reward: null });
  });

  it('is stopped when it starts after the session has ended', async () => {
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

describe('the start of an attempt', () => {
  it('is recorded before its sandbox is started', async () => {
    const order: string[] = [];
    const { attempt, deps, alive } = bench({
      recordStart: async () => void order.push('recorded'),
      start: async () => {
        order.push('sandbox');
        return runtimeOf(async () => ENDED_WELL, alive);
      },
    });
    await runSession(attempt, deps);
    expect(order.slice(0, 2)).toEqual(['recorded', 'sandbox']);
  });

  it('fails as infra_error without a sandbox when it cannot be recorded', async () => {
    let started = 0;
    const { attempt, deps } = bench({
      recordStart: async () => {
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
  it('returns a partial result that is never trained', async () => {
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
    const partial = await runSession(attempt, deps);
    expect(partial?.summary).toMatchObject({
      outcome: 'infra_error',
      completion_count: 2,
      reward: null,
      error: { code: 'stale_epoch' },
    });
    expect(JSON.parse(String(partial?.completions))).toHaveLength(2);
    expect(JSON.parse(String(partial?.trajectory))).toMatchObject({ status: 'ERROR' });
    expect(alive.size).toBe(0);
  });

  it('returns null when no model call was recorded', async () => {
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
  it('stops the sandbox even if the proxy session fails to close', async () => {
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

  it('does not wait indefinitely for a sandbox that does not stop', async () => {
    const { attempt, deps, clock, alive } = bench({
      task: { evaluator: null },
      start: async () => ({ ...runtimeOf(async () => ENDED_WELL, alive), stop: () => new Promise<void>(() => {}) }),
    });
    const ended = runSession(attempt, deps);
    for (let i = 0; i < 5; i++) await settle();
    clock.advance(30_000);
    expect((await ended)?.summary.outcome).toBe('completed');
  });

  it('closes the proxy session on cancellation while its processes are still ending', async () => {
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
