import type { Outcome, SessionSummary, TaskRequest } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { jobResult } from '../../../src/rollout/prorl/result.ts';

const task = { metadata: {}, timeout_seconds: 60 } as TaskRequest;
const timing = { queued_ms: 0, total_ms: 5_000, init_ms: 1_000, running_ms: 2_000, eval_ms: 1_500 };

function ended(outcome: Outcome, message: string | null = null): SessionSummary {
  const error = message === null ? null : { code: 'agent_error', message };
  return { outcome, reward: null, reward_details: {}, error, timing } as unknown as SessionSummary;
}

describe('the result of a ProRL job', () => {
  it.each([
    ['completed', null],
    ['truncated_turns', null],
    ['truncated_context', null],
    ['env_error', 'init'],
    ['agent_error', 'run'],
    ['engine_error', 'run'],
    ['infra_error', 'run'],
    ['no_completions', 'run'],
    ['verifier_error', 'eval'],
    ['agent_timeout', 'timeout'],
    ['cancelled', 'timeout'],
  ] as const)('of a session that ended as %s names the phase that failed: %s', (outcome, phase) => {
    const result = jobResult(task, ended(outcome), null, []);
    expect([result.critical_error, result.success, result.filter]).toEqual([phase, phase === null, phase !== null]);
  });

  it("has the session's error, or its outcome when there is no message", () => {
    expect(jobResult(task, ended('agent_error', 'exited with 3'), null, []).error).toBe('exited with 3');
    expect(jobResult(task, ended('agent_error'), null, []).error).toBe('the session ended as agent_error');
  });

  it('divides the duration of the session among its phases, in seconds', () => {
    expect(jobResult(task, ended('completed'), null, []).timing).toEqual({
      init: 1,
      run: 2,
      eval: 1.5,
      others: 0.5,
      timeout: 60,
    });
  });
});
