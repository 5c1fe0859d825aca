import { describe, expect, it } from 'vitest';
import { runSession } from '../../src/gateway/session-runner.ts';
import { bench, ENDED_WELL, runtimeOf, settle, untilAborted } from './bench.ts';

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
    const { attempt, deps } = bench({ ...hangingEval, session: { turns: 0 } });
    const result = await runSession(attempt, deps);
    expect(result?.summary).toMatchObject({ outcome: 'no_completions', reward: null });
  });

  it('is stopped with the session when it gets ready too late', async () => {
    let ready = (): void => {};
    const { attempt, deps, alive } = bench({
      session: { turns: 0 },
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
