import { FloeError } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import { classify } from '../../../src/gateway/session/failure.ts';
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

  it('is env_error when the environment of the task cannot be prepared', async () => {
    const { attempt, deps } = bench({
      start: async () => {
        throw new FloeError('prepare_failed', 'the command exited with 7');
      },
    });
    const summary = { outcome: 'env_error', reward: null, error: { code: 'prepare_failed', stage: 'init' } };
    expect((await runSession(attempt, deps))?.summary).toMatchObject(summary);
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

  it('has a message of at most 4,000 characters, because an agent can make it arbitrarily long', () => {
    const error = new FloeError('harness_failed', `qwen: ${'x'.repeat(100_000)}`);
    expect(classify(error, 'agent').error.message).toBe(`qwen: ${'x'.repeat(4_000 - 6)}`);
  });
});
