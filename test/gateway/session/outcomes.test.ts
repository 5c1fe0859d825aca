import { describe, expect, it } from 'vitest';
import { FloeError } from '../../../src/core/errors.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { bench, ENDED_WELL, settle, untilAborted } from '../bench.ts';

describe('what the infrastructure did', () => {
  const infra = { reward: null, policy: { use: 'drop', in_baseline: false } };

  it('is not the fault of an agent that never got its proxy', async () => {
    const { attempt, deps } = bench({
      openSession: async () => {
        throw new FloeError('setup_failed', 'the socket path is longer than 107 bytes');
      },
    });
    expect((await runSession(attempt, deps))?.summary).toMatchObject({ outcome: 'infra_error', ...infra });
  });

  it.each([
    ['store_unavailable', 'infra_error'],
    ['internal', 'infra_error'],
    ['engine_error', 'engine_error'],
    ['engine_unavailable', 'engine_error'],
  ] as const)('%s of the last model call is not the fault of the agent that gave up', async (code, outcome) => {
    for (const turns of [0, 3]) {
      const { attempt, deps } = bench({
        task: { evaluator: { strategy: 'fake' } },
        session: { completionCount: turns, lastError: new FloeError(code, 'no') },
        exec: async () => ({ ...ENDED_WELL, exitCode: 1 }),
      });
      expect((await runSession(attempt, deps))?.summary).toMatchObject({ outcome, ...infra });
    }
  });

  it('engines that are away for an agent that ends well without one reply', async () => {
    const { attempt, deps } = bench({
      session: { completionCount: 0, lastError: new FloeError('engine_unavailable', 'away') },
    });
    expect((await runSession(attempt, deps))?.summary).toMatchObject({ outcome: 'engine_error', ...infra });
  });

  it('engines that are away until the time of the agent is over', async () => {
    const { attempt, deps, clock } = bench({
      task: { budgets: { agent: 10 }, evaluator: { strategy: 'fake' } },
      session: { completionCount: 2, lastError: new FloeError('engine_unavailable', 'away') },
      exec: untilAborted,
    });
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(10_000);
    expect((await ended)?.summary).toMatchObject({ outcome: 'engine_error', ...infra });
  });

  it.each([
    ['a first call', null],
    ['a call behind one that was refused', new FloeError('engine_rejected', 'no such tool')],
  ])('engines that %s looks for until the time of the agent is over', async (_, lastError) => {
    const { attempt, deps, clock } = bench({
      task: { budgets: { agent: 10 }, evaluator: { strategy: 'fake' } },
      session: { completionCount: 0, runningCalls: 1, lastError },
      failureOf: () => new FloeError('engine_unavailable', 'no engine is registered'),
      exec: untilAborted,
    });
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(10_000);
    expect((await ended)?.summary).toMatchObject({
      outcome: 'engine_error',
      error: { code: 'engine_unavailable' },
      ...infra,
    });
  });

  it('an agent that uses up its time while its model answers has only itself to blame', async () => {
    const { attempt, deps, clock } = bench({
      task: { budgets: { agent: 10 }, evaluator: { strategy: 'fake' } },
      exec: untilAborted,
    });
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(10_000);
    expect((await ended)?.summary).toMatchObject({ outcome: 'agent_timeout', reward: 0 });
  });

  it('a grading that the infrastructure broke off is tried again, however the agent ended', async () => {
    const { attempt, deps } = bench({
      task: { evaluator: { strategy: 'fake' } },
      exec: async () => ({ ...ENDED_WELL, exitCode: 1 }),
      evaluate: async () => {
        throw new FloeError('runtime_failed', 'the spawn helper died');
      },
    });
    expect((await runSession(attempt, deps))?.summary).toMatchObject({ outcome: 'infra_error', ...infra });
  });
});
