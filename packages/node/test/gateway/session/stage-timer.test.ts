import { FloeError, VirtualClock } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import { StageTimer } from '../../../src/gateway/session/stage-timer.ts';

const never = new AbortController().signal;

/** Returns a promise that never resolves. It rejects with the reason of `signal` when `signal` aborts. */
const untilAborted = (signal: AbortSignal): Promise<never> =>
  new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));

describe('StageTimer', () => {
  it('counts only the time inside stages in active mode', async () => {
    const clock = new VirtualClock();
    const timer = new StageTimer(clock, 1_000, 'active');
    clock.advance(5_000);
    await timer.run('init', null, never, async () => clock.advance(300));
    clock.advance(5_000);
    await timer.run('agent', null, never, async () => clock.advance(200));
    expect(timer.usedMs()).toBe(500);
    expect(timer.remainingMs()).toBe(500);
  });

  it('also counts waiting in wall mode', () => {
    const clock = new VirtualClock();
    const timer = new StageTimer(clock, 1_000, 'wall');
    clock.advance(400);
    timer.pause();
    clock.advance(400);
    expect(timer.remainingMs()).toBe(200);
  });

  it('aborts a stage when it has used up the rest of the session budget that earlier stages left', async () => {
    const clock = new VirtualClock();
    const timer = new StageTimer(clock, 1_000, 'active');
    await timer.run('init', null, never, async () => clock.advance(700));
    const agent = timer.run('agent', null, never, untilAborted);
    clock.advance(300);
    const error = await agent.catch((reason) => reason);
    expect(FloeError.is(error) && error.code).toBe('deadline_exceeded');
    expect(error.details).toMatchObject({ stage: 'agent', budget: 'session' });
    expect(timer.remainingMs()).toBe(0);
  });

  it('aborts a stage at its own budget and keeps the rest of the session budget', async () => {
    const clock = new VirtualClock();
    const timer = new StageTimer(clock, 10_000, 'active');
    const agent = timer.run('agent', 250, never, untilAborted);
    clock.advance(250);
    expect((await agent.catch((reason) => reason)).details).toMatchObject({ budget: 'stage', limit_ms: 250 });
    expect(timer.remainingMs()).toBe(9_750);
  });

  it('aborts with the reason of the parent signal', async () => {
    const clock = new VirtualClock();
    const timer = new StageTimer(clock, 1_000, 'active');
    const parent = new AbortController();
    const agent = timer.run('agent', null, parent.signal, untilAborted);
    parent.abort(new FloeError('cancelled', 'stop'));
    expect((await agent.catch((reason) => reason)).code).toBe('cancelled');
  });
});
