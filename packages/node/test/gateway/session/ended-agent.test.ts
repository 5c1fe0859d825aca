import { FloeError } from '@floe-rl/core';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Rig } from '../../../../capture/test/proxy/rig.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { type BenchParts, bench, ENDED_WELL, runtimeOf, settle, untilAborted } from '../session-bench.ts';

let rig: Rig;
beforeEach(async () => {
  rig = await Rig.start();
});
afterEach(() => rig.stop());

const TIMEOUT_SECONDS = 100;

/** The ways in which an agent can end. Each session is evaluated afterwards. */
const ENDS: readonly (readonly [name: string, exec: NonNullable<BenchParts['exec']>, outcome: string])[] = [
  ['by itself', async () => ENDED_WELL, 'completed'],
  ['with an error', async () => ({ ...ENDED_WELL, exitCode: 3 }), 'agent_error'],
  ['at the end of its time', untilAborted, 'agent_timeout'],
  [
    'at its turn limit',
    async () => {
      throw new FloeError('turn_limit', 'all turns are used');
    },
    'truncated_turns',
  ],
];

describe('the session key of an agent that has ended', () => {
  it.each(ENDS)('is refused while the session is evaluated, when the agent ended %s', async (_, exec, outcome) => {
    let key = '';
    let onCalled = (): void => {};
    const called = new Promise<void>((resolve) => {
      onCalled = resolve;
    });
    const statuses: number[] = [];
    const { attempt, deps, clock } = bench({
      task: { timeout_seconds: TIMEOUT_SECONDS, evaluator: { strategy: 'fake' } },
      exec: async (signal) => {
        statuses.push((await rig.chat(key).reply).status);
        onCalled();
        return exec(signal);
      },
      openSession: (spec) => {
        key = spec.key;
        return rig.proxy.open({ ...spec, socketPath: null });
      },
      evaluate: async () => {
        expect(attempt.status).toBe('POSTRUN');
        statuses.push((await rig.chat(key).reply).status);
        return { reward: 1, details: {} };
      },
    });
    const ended = runSession(attempt, deps);
    await called;
    await settle();
    if (exec === untilAborted) clock.advance(TIMEOUT_SECONDS * 1000);
    const result = await ended;
    expect(statuses).toEqual([200, 410]);
    expect(result?.summary).toMatchObject({ outcome, completion_count: 1 });
    expect(rig.server.chats).toHaveLength(1);
  });
});

describe('the reward of an agent that has ended', () => {
  const HANGING = ['evaluator', 'fresh runtime'] as const;
  const CASES = ENDS.flatMap(([name, exec, outcome]) =>
    HANGING.flatMap((hanging) =>
      (['active', 'wall'] as const).map((clock) => [name, hanging, clock, exec, outcome] as const),
    ),
  );

  it.each(CASES)('%s is null when the time for its %s runs out (%s clock)', async (_, hanging, mode, exec, outcome) => {
    const { attempt, deps, clock, alive } = bench({
      task: {
        timeout_seconds: TIMEOUT_SECONDS,
        timeout_clock: mode,
        evaluator: { strategy: 'fake', refresh_runtime: true },
      },
      start: async (purpose, _request, signal) =>
        hanging === 'fresh runtime' && purpose === 'eval' ? untilAborted(signal) : runtimeOf(exec, alive),
      evaluate: async (_input, signal) => (hanging === 'evaluator' ? untilAborted(signal) : { reward: 0, details: {} }),
    });
    const ended = runSession(attempt, deps);
    await settle();
    if (exec === untilAborted) clock.advance(TIMEOUT_SECONDS * 1000);
    await settle();
    clock.advance(TIMEOUT_SECONDS * 1000);
    expect((await ended)?.summary).toMatchObject({
      outcome: outcome === 'completed' ? 'verifier_error' : outcome,
      reward: null,
    });
  });
});
