import { describe, expect, it } from 'vitest';
import { sessionSummary } from '../../src/protocol/session-summary.ts';
import { sessionSummarySchema } from '../../src/schema/index.ts';

const attempt = { session_id: 'ses_1', task_id: 'task_1', sample_index: 2, attempt: 3, epoch: 4 };

describe('sessionSummary', () => {
  it('uses empty values for all fields that are not given', () => {
    const summary = sessionSummary(attempt, 'infra_error', {});
    expect(sessionSummarySchema.parse(summary)).toEqual(summary);
    expect(summary).toMatchObject({ ...attempt, status: 'ERROR', reward: null, trainable_tokens: 0, node_id: null });
  });

  it('keeps the reward of an outcome that is evaluated', () => {
    expect(sessionSummary(attempt, 'agent_timeout', { reward: 0.5 }).reward).toBe(0.5);
  });

  it('gives no reward for an outcome that is not evaluated', () => {
    expect(sessionSummary(attempt, 'engine_error', { reward: 0 }).reward).toBeNull();
  });
});
