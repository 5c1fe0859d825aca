import { describe, expect, it } from 'vitest';
import { FloeError } from '../../../src/core/errors.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { bench, ENDED_WELL, settle, untilAborted } from '../session-bench.ts';

describe('the outcome of a session', () => {
  const infra = { reward: null, policy: { use: 'drop', in_baseline: false } };

  it('is infra_error when the proxy session cannot be opened', async () => {
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
  ] as const)('excuses an agent that gave up after %s of its last model call', async (code, outcome) => {
    for (const turns of [0, 3]) {
      const { attempt, deps } = bench({
        task: { evaluator: { strategy: 'fake' } },
        session: { completionCount: turns, lastError: new FloeError(code, 'no') },
        exec: async () => ({ ...ENDED_WELL, exitCode: 1 }),
      });
      expect((await runSession(attempt, deps))?.summary).toMatchObject({ outcome, ...infra });
    }
  });

  it('is engine_error when no engine answered an agent that exits successfully', async () => {
    const { attempt, deps } = bench({
      session: { completionCount: 0, lastError: new FloeError('engine_unavailable', 'unreachable') },
    });
    expect((await runSession(attempt, deps))?.summary).toMatchObject({ outcome: 'engine_error', ...infra });
  });

  it('is engine_error when the engines are unavailable until the agent times out', async () => {
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
    ['first call', null],
    ['call after a refused one', new FloeError('engine_rejected', 'no such tool')],
  ])('is engine_error when a %s finds no engine until the agent times out', async (_, lastError) => {
    const { attempt, deps, clock } = bench({
      task: { budgets: { agent: 10 }, evaluator: { strategy: 'fake' } },
      session: { completionCount: 0, runningCalls: 1, lastError },
      pendingCallFailure: () => new FloeError('engine_unavailable', 'no engine is registered'),
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

  it('is agent_timeout when the agent times out although its model answers', async () => {
    const { attempt, deps, clock } = bench({
      task: { budgets: { agent: 10 }, evaluator: { strategy: 'fake' } },
      exec: untilAborted,
    });
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(10_000);
    expect((await ended)?.summary).toMatchObject({ outcome: 'agent_timeout', reward: 0 });
  });

  it('is infra_error when the infrastructure fails during the evaluation, however the agent ended', async () => {
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
