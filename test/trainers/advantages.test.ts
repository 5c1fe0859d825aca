import { describe, expect, it } from 'vitest';
import { sessionSummary } from '../../src/core/session-summary.ts';
import type { Outcome, SessionResult, Trace, Trajectory } from '../../src/schema/index.ts';
import { type ExportOptions, trainerRecords, trainingGroups } from '../../src/trainers/index.ts';

/** Makes a result with `traces` traces of one prompt token and two trained tokens each. */
function result(index: number, reward: number | null, traces = 1, outcome: Outcome = 'completed'): SessionResult {
  const attempt = { session_id: `s${index}`, task_id: 't', sample_index: index, attempt: 1, epoch: 1 };
  const summary = sessionSummary(attempt, outcome, { reward, trainable_tokens: 2 * traces, trace_count: traces });
  const trace = {
    prompt_ids: [1],
    response_ids: [2, 3],
    loss_mask: [1, 1],
    response_logprobs: [-1, -2],
    version_spans: [{ version: 'v1', start: 0, end: 2 }],
    constrained_spans: [],
    prompt_messages: [],
    response_messages: [],
    tools: [],
    routed_experts: null,
    finish_reason: 'stop',
    reward,
    completion_ids: [],
    metadata: {},
  };
  const all: Trace[] = Array.from({ length: traces }, (_, i) => ({ trace_id: `s${index}.${i}`, ...trace }));
  return { ...summary, trajectory: { images: {}, traces: all } as unknown as Trajectory };
}

function advantages(results: readonly SessionResult[], options: Partial<ExportOptions>): unknown[] {
  const records = trainerRecords(trainingGroups(results), { format: 'trl_async', ...options });
  return records.map((record) => record.advantage);
}

describe('advantages', () => {
  it('compares a sample with the mean and the sample standard deviation of its group', () => {
    const values = advantages([result(0, 1), result(1, 0), result(2, 0), result(3, 1)], { advantages: 'grpo' });
    const deviation = Math.sqrt(1 / 3);
    expect(values).toEqual([1, -1, -1, 1].map((sign) => expect.closeTo((sign * 0.5) / deviation, 5)));
  });

  it('compares a sample with the mean of the others for leave_one_out, and with the mean of all for centered', () => {
    const results = [result(0, 3), result(1, 0), result(2, 0)];
    expect(advantages(results, { advantages: 'leave_one_out' })).toEqual([3, -1.5, -1.5]);
    expect(advantages(results, { advantages: 'centered' })).toEqual([2, -1, -1]);
  });

  it('is 0 in a group of equal rewards and in a group of one sample', () => {
    expect(advantages([result(0, 1), result(1, 1)], { advantages: 'grpo' })).toEqual([0, 0]);
    expect(advantages([result(0, 1)], { advantages: 'leave_one_out' })).toEqual([0]);
  });

  it('counts a masked sample in the baseline and trains none of its tokens', () => {
    const results = [result(0, 1), result(1, 0), result(2, 2, 1, 'agent_timeout')];
    expect(advantages(results, { advantages: 'centered' })).toEqual([0, -1]);
  });

  it('counts the reward of a sample in the baseline that has no trace to train', () => {
    const results = [result(0, 1), result(1, 0), result(2, 2, 0, 'agent_error')];
    expect(advantages(results, { advantages: 'centered' })).toEqual([0, -1]);
  });

  it('counts a session once when its result was delivered twice', () => {
    const results = [result(0, 1), result(1, 0), result(0, 1)];
    expect(advantages(results, { advantages: 'centered' })).toEqual([0.5, -0.5]);
  });

  it('leaves samples without a reward out of the baseline', () => {
    const results = [result(0, 1), result(1, 0), result(2, null)];
    expect(advantages(results, { advantages: 'centered' })).toEqual([0.5, -0.5, 0]);
  });

  it('divides the advantage of a sample by its number of traces with perSession', () => {
    const results = [result(0, 1, 4), result(1, 0)];
    expect(advantages(results, { advantages: 'centered', perSession: true })).toEqual([
      0.125, 0.125, 0.125, 0.125, -0.5,
    ]);
    expect(advantages(results, { advantages: 'centered' })).toEqual([0.5, 0.5, 0.5, 0.5, -0.5]);
  });
});
