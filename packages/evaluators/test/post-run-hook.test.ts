import { FloeError, VirtualClock } from '@floe-rl/core';
import type { SessionSummary, TaskRequest } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { NO_EVALUATION } from '../src/evaluation-check.ts';
import { type PostRunEvent, postRunHook } from '../src/post-run-hook.ts';
import { sessionOf, traceOf } from './evaluated-session.ts';

const EVENT: PostRunEvent = {
  task: { instruction: 'Do it.' } as TaskRequest,
  session: sessionOf('done', { traces: [traceOf('t0', ['c0'])] }),
  evaluation: {
    ...NO_EVALUATION,
    reward: 0.5,
    details: { passed: 3 },
    components: { tests: 0.5 },
    traceRewards: { t0: 0.5 },
  },
  summary: { session_id: 'ses_1' } as SessionSummary,
};

function hookOf(postRun: unknown, clock = new VirtualClock()) {
  return postRunHook('mine', 'the module', { postRun }, { clock, timeoutSeconds: 5 });
}

const run = (postRun: unknown, dropped: string | null = null) =>
  hookOf(postRun).run(EVENT, dropped, new AbortController().signal);

describe('a post-run hook', () => {
  it('receives the task, the session, the evaluation and the summary', async () => {
    const seen: unknown[] = [];
    await run((event: unknown, signal: unknown) => void seen.push(event, signal));
    expect(seen).toEqual([EVENT, expect.any(AbortSignal)]);
  });

  it.each<[string, unknown]>([
    ['returns nothing', () => undefined],
    ['resolves with nothing', async () => {}],
    ['returns an empty change', () => ({})],
    ['returns fields without values', () => ({ reward: undefined, drop: undefined })],
  ])('changes nothing when it %s', async (_, postRun) => {
    expect(await run(postRun)).toEqual({ ...EVENT.evaluation, dropped: null });
  });

  it('replaces what it returns, and adds its details to those of the evaluation', async () => {
    const change = { reward: -1, components: { mine: 2 }, stepRewards: { c0: 1 }, details: { checked: true } };
    expect(await run(async () => change)).toEqual({
      reward: -1,
      components: { mine: 2 },
      details: { passed: 3, checked: true },
      traceRewards: { t0: 0.5 },
      stepRewards: { c0: 1 },
      dropped: null,
    });
  });

  it('can remove the reward, and with it those of the traces', async () => {
    expect(await run(() => ({ reward: null }))).toMatchObject({ reward: null, traceRewards: {} });
  });

  it('drops a sample with a reason, which a later hook does not replace', async () => {
    expect(await run(() => ({ drop: 'too short' }))).toMatchObject({ dropped: 'too short', reward: 0.5 });
    expect(await run(() => ({ drop: 'again' }), 'too short')).toMatchObject({ dropped: 'too short' });
    expect(await run(() => ({}), 'too short')).toMatchObject({ dropped: 'too short' });
  });

  it.each<[string, unknown, RegExp]>([
    [
      'throws',
      () => {
        throw new TypeError('oh');
      },
      /post-run hook mine: oh/,
    ],
    ['rejects', () => Promise.reject(new Error('no')), /post-run hook mine: no/],
    ['rejects with something that is no error', () => Promise.reject('a text'), /post-run hook mine: a text/],
    ['returns a number', () => 1, /what postRun returned/],
    ['returns an unknown field', () => ({ score: 1 }), /score/],
    ['returns NaN', () => ({ reward: Number.NaN }), /reward/],
    ['returns an infinite component', () => ({ components: { a: Number.POSITIVE_INFINITY } }), /components/],
    ['returns a reward beyond the largest magnitude', () => ({ reward: 1e16 }), /reward/],
    ['names an unknown trace', () => ({ traceRewards: { t9: 1 } }), /t9/],
    ['drops without a reason', () => ({ drop: '' }), /drop/],
    ['drops with an endless reason', () => ({ drop: 'x'.repeat(1_001) }), /drop/],
  ])('fails when it %s', async (_, postRun, message) => {
    await expect(run(postRun)).rejects.toMatchObject({
      code: 'evaluator_failed',
      message: expect.stringMatching(message),
    });
  });

  it('fails after its deadline, also when it ignores its signal', async () => {
    const clock = new VirtualClock();
    const failed = expect(
      hookOf(() => new Promise(() => {}), clock).run(EVENT, null, new AbortController().signal),
    ).rejects.toMatchObject({ code: 'evaluator_failed', message: 'post-run hook mine ran longer than 5 s' });
    clock.advance(5_000);
    await failed;
  });

  it('ends with the reason of its signal, whatever it throws then', async () => {
    const controller = new AbortController();
    const cancelled = new FloeError('cancelled', 'the session was cancelled');
    const hook = hookOf((_: unknown, signal: AbortSignal) => {
      controller.abort(cancelled);
      signal.throwIfAborted();
    });
    await expect(hook.run(EVENT, null, controller.signal)).rejects.toBe(cancelled);
  });

  it('must be exported by its module as a function', () => {
    expect(() => hookOf(undefined)).toThrow(
      expect.objectContaining({ code: 'setup_failed', message: expect.stringContaining('the module') }),
    );
  });
});
