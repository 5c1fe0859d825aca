import { sessionSummary } from '@floe-rl/core/protocol';
import type { Outcome, SessionResult, Trace, Trajectory } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
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

/** Makes a result whose trace has a reply of one token for each reward. A context token separates each reply from the next. */
function turns(index: number, rewards: readonly (number | null)[], reward = 0): SessionResult {
  const made = result(index, reward);
  const response = rewards.flatMap((_, turn) => (turn === 0 ? [1] : [0, 1]));
  Object.assign(made.trajectory?.traces[0] ?? {}, {
    response_ids: response,
    loss_mask: response,
    response_logprobs: response.map((mask) => -mask),
    metadata: { step_rewards: rewards, step_ends: rewards.map((_, turn) => 2 * turn + 1) },
  });
  return made;
}

/** Returns the advantages of all response tokens of each trace. */
function tokenAdvantages(results: readonly SessionResult[], options: Partial<ExportOptions>): unknown[] {
  const records = trainerRecords(trainingGroups(results), { format: 'floe', ...options });
  return records.map((record) => [...(record.advantages as Float32Array)]);
}

describe('advantages for each reply', () => {
  it('are the sums of the normalised rewards of the reply and of those after it', () => {
    const results = [turns(0, [1, 0]), turns(1, [0, 1])];
    expect(tokenAdvantages(results, { advantages: 'centered', perTurn: true })).toEqual([
      [0, 0, -0.5],
      [0, 0, 0.5],
    ]);
    const deviation = Math.sqrt(1 / 3);
    const [first] = tokenAdvantages(results, { advantages: 'grpo', perTurn: true }) as number[][];
    expect(first?.[2]).toBeCloseTo(-0.5 / deviation, 5);
  });

  it('compare a reply with those of the other samples for leave_one_out', () => {
    const results = [turns(0, [2]), turns(1, [0, 1])];
    expect(tokenAdvantages(results, { advantages: 'leave_one_out', perTurn: true })).toEqual([[1.5], [-3, 0, -1]]);
  });

  it("give the last reply the trace's reward where the evaluator gave none, and divide by the traces with perSession", () => {
    const results = [turns(0, [null, null], 1), turns(1, [null, null], 0)];
    expect(tokenAdvantages(results, { advantages: 'centered', perTurn: true })).toEqual([
      [0.5, 0, 0.75],
      [-0.5, 0, -0.25],
    ]);
    const plain = [result(0, 1, 2), result(1, 0)];
    expect(tokenAdvantages(plain, { advantages: 'leave_one_out', perTurn: true, perSession: true })).toEqual([
      [0.5, 0.5],
      [0.5, 0.5],
      [-1, -1],
    ]);
  });

  it('add up the later turns of a trajectory whose turns are traces of their own', () => {
    const steps = result(0, 1, 3);
    steps.trajectory?.traces.forEach((trace, turn) => {
      const trajectory = turn < 2 ? 'e0' : 'e1';
      Object.assign(trace, { metadata: { trajectory_id: trajectory, step_reward: turn === 0 ? 0.5 : 1 } });
    });
    expect(tokenAdvantages([steps, result(1, 0)], { advantages: 'leave_one_out', perTurn: true })).toEqual([
      [1.5, 1.5],
      [1, 1],
      [1, 1],
      [-0.8333333134651184, -0.8333333134651184],
    ]);
  });

  it('are 0 without a reward and without a second sample, and change nothing for replies that a trace does not train', () => {
    expect(tokenAdvantages([turns(0, [1, 2])], { advantages: 'grpo', perTurn: true })).toEqual([[0, 0, 0]]);
    const owned = turns(0, [1, 1]);
    Object.assign(owned.trajectory?.traces[0] ?? {}, {
      loss_mask: [0, 0, 1],
      metadata: { step_rewards: [9, 1], step_ends: [null, 3] },
    });
    expect(tokenAdvantages([owned, turns(1, [0])], { advantages: 'leave_one_out', perTurn: true })).toEqual([
      [0, 0, 1],
      [-1],
    ]);
  });
});

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
