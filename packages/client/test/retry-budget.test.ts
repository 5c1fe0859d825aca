import { getEventListeners } from 'node:events';
import { FloeError, VirtualClock } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import { RetryBudget } from '../src/retry-budget.ts';

const transient = new FloeError('not_ready', 'starting');

describe('RetryBudget', () => {
  it('doubles the pauses, shortened by the random source, until its limit is reached', async () => {
    const clock = new VirtualClock();
    const budget = new RetryBudget(clock, 1_000, new AbortController().signal, () => 0);
    const pausesMs: number[] = [];
    for (;;) {
      const startMs = clock.monotonicMs();
      const waiting = budget.waitAfter(transient).then(
        () => true,
        () => false,
      );
      clock.fireNext();
      if (!(await waiting)) break;
      pausesMs.push(clock.monotonicMs() - startMs);
    }
    // The last pause ends when the limit is reached.
    expect(pausesMs).toEqual([50, 100, 200, 400, 250]);
  });

  it('reports each failure before its pause, and not the last one', async () => {
    const clock = new VirtualClock();
    const failures: FloeError[] = [];
    const budget = new RetryBudget(
      clock,
      60,
      new AbortController().signal,
      () => 0,
      (failure) => failures.push(failure),
    );
    const first = budget.waitAfter(transient);
    expect(failures).toEqual([transient]);
    clock.fireNext();
    await first;
    clock.advance(60);
    await expect(budget.waitAfter(new FloeError('overloaded', 'later'))).rejects.toThrow('later');
    await expect(budget.waitAfter(new FloeError('conflict', 'no'))).rejects.toThrow('no');
    expect(failures).toEqual([transient]);
  });

  it('starts with the shortest pause after a success', async () => {
    const clock = new VirtualClock();
    const budget = new RetryBudget(clock, 10_000, new AbortController().signal, () => 0);
    for (const expectedMs of [50, 50]) {
      const startMs = clock.monotonicMs();
      const waiting = budget.waitAfter(transient);
      clock.fireNext();
      await waiting;
      expect(clock.monotonicMs() - startMs).toBe(expectedMs);
      budget.reset();
    }
  });

  it('leaves no listener on its signals', async () => {
    const clock = new VirtualClock();
    const [closed, caller] = [new AbortController(), new AbortController()];
    const budget = new RetryBudget(clock, 10_000, closed.signal, () => 0);
    const waiting = budget.waitAfter(transient, caller.signal);
    clock.fireNext();
    await waiting;
    const counts = [closed, caller].map(({ signal }) => getEventListeners(signal, 'abort').length);
    expect(counts).toEqual([0, 0]);
  });

  it('throws the failure itself when a repetition cannot succeed', async () => {
    const budget = new RetryBudget(new VirtualClock(), 1_000, new AbortController().signal, () => 0);
    for (const failure of [new FloeError('not_found', 'x'), new FloeError('internal', 'x'), new Error('x')]) {
      await expect(budget.waitAfter(failure)).rejects.toBe(failure);
    }
  });
});
