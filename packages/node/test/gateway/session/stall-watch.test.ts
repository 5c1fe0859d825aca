import { FloeError, VirtualClock } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { withStallWatch } from '../../../src/gateway/session/stall-watch.ts';
import { bench, ENDED_WELL, runtimeOf, settle, untilAborted } from '../session-bench.ts';
import { SuspendableClock } from '../suspendable-clock.ts';

function watch(clock: VirtualClock, progressCount: () => number, limitMs: number | null = 10_000) {
  const stallError = (seconds: number): FloeError => new FloeError('deadline_exceeded', 'stalled', { seconds });
  const parent = new AbortController();
  const ended = withStallWatch({ clock, limitMs, progressCount, stallError }, parent.signal, untilAborted).catch(
    (error: unknown) => error,
  );
  return { ended, parent };
}

describe('withStallWatch', () => {
  it('aborts the work after the limit without progress', async () => {
    const clock = new VirtualClock();
    const { ended } = watch(clock, () => 0);
    clock.advance(9_900);
    const early = await Promise.race([ended, settle().then(() => 'running')]);
    expect(early).toBe('running');
    clock.advance(600);
    expect(await ended).toMatchObject({ code: 'deadline_exceeded', details: { seconds: 10 } });
  });

  it('never aborts while there is progress', async () => {
    const clock = new VirtualClock();
    let count = 0;
    const { ended, parent } = watch(clock, () => count);
    for (let i = 0; i < 100; i++) {
      clock.advance(9_000);
      count++;
    }
    const state = await Promise.race([ended, settle().then(() => 'running')]);
    expect(state).toBe('running');
    parent.abort(new FloeError('cancelled', 'enough'));
    expect(await ended).toMatchObject({ code: 'cancelled' });
  });

  it('does not count time in which the process was suspended', async () => {
    const clock = new SuspendableClock();
    const { ended, parent } = watch(clock, () => 0);
    clock.advance(5_000);
    clock.suspend(3_600_000);
    clock.advance(3_000);
    expect(await Promise.race([ended, settle().then(() => 'running')])).toBe('running');
    parent.abort(new FloeError('cancelled', 'enough'));
    await ended;
  });

  it('never aborts without a limit', async () => {
    const clock = new VirtualClock();
    const { ended, parent } = watch(clock, () => 0, null);
    clock.advance(1e9);
    expect(await Promise.race([ended, settle().then(() => 'running')])).toBe('running');
    parent.abort(new FloeError('cancelled', 'enough'));
    await ended;
  });
});

describe('a stalled stage', () => {
  const task = { timeout_seconds: 1_000_000, max_attempts: 1, budgets: { stall: 30 } };

  it('is an environment error that states the duration when the stage is INIT', async () => {
    const { attempt, deps, clock, alive } = bench({ task, start: (_, __, signal) => untilAborted(signal) });
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(31_500);
    const result = await ended;
    expect(result?.summary).toMatchObject({
      outcome: 'env_error',
      error: { code: 'deadline_exceeded', stage: 'init', details: { budget: 'stall', stalled_seconds: 30 } },
    });
    expect(alive.size).toBe(0);
  });

  it('is an agent timeout while the agent runs', async () => {
    const { attempt, deps, clock } = bench({ task, exec: untilAborted });
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(31_500);
    expect((await ended)?.summary).toMatchObject({
      outcome: 'agent_timeout',
      error: { details: { stage: 'agent', stalled_seconds: 30 } },
    });
  });

  it('is an engine error while a model call is running', async () => {
    const { attempt, deps, clock } = bench({ task, exec: untilAborted, session: { runningCalls: 1 } });
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(31_500);
    expect((await ended)?.summary).toMatchObject({
      outcome: 'engine_error',
      error: { code: 'engine_error', details: { stalled_seconds: 30 } },
    });
  });

  it('leaves the reward null when the stage is the evaluation', async () => {
    const { attempt, deps, clock } = bench({ task, evaluate: (_, signal) => untilAborted(signal) });
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(31_500);
    expect((await ended)?.summary).toMatchObject({ outcome: 'verifier_error', reward: null });
  });

  it('uses the limit of the node when the task sets none, and no limit when the node has none', async () => {
    const own = bench({ task: { timeout_seconds: 1e6 }, stallSeconds: 30, exec: untilAborted });
    const ended = runSession(own.attempt, own.deps);
    await settle();
    own.clock.advance(31_500);
    expect((await ended)?.summary.outcome).toBe('agent_timeout');

    const off = bench({ task: { timeout_seconds: 1e6 }, exec: untilAborted });
    const unlimited = runSession(off.attempt, off.deps);
    await settle();
    off.clock.advance(100_000);
    await settle();
    expect(off.attempt.status).toBe('RUNNING');
    off.attempt.stop('cancelled');
    expect(await unlimited).toBeNull();
  });

  it('does not count time in which its model call waits for an engine', async () => {
    let waits = true;
    const { attempt, deps, clock } = bench({ task, exec: untilAborted, awaitsEngine: () => waits });
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(60_000);
    await settle();
    expect(attempt.status).toBe('RUNNING');
    waits = false;
    clock.advance(31_500);
    expect((await ended)?.summary.outcome).toBe('agent_timeout');
  });

  it('does not count time in which commands write output', async () => {
    let beat = (): void => {};
    const { attempt, deps, clock, alive } = bench({
      task: { ...task, evaluator: null },
      start: async (_, request) => {
        beat = () => request.onActivity?.();
        return runtimeOf(
          (signal) =>
            new Promise((resolve, reject) => {
              finish = () => resolve(ENDED_WELL);
              signal.addEventListener('abort', () => reject(signal.reason));
            }),
          alive,
        );
      },
    });
    let finish = (): void => {};
    const ended = runSession(attempt, deps);
    await settle();
    for (let i = 0; i < 20; i++) {
      clock.advance(20_000);
      beat();
    }
    finish();
    expect((await ended)?.summary.outcome).toBe('completed');
  });
});
