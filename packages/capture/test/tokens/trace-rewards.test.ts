import { trajectorySchema } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { buildTraces, encodeTrajectory, traceIdOf } from '../../src/tokens/trajectory.ts';
import { Transcript } from './transcript.ts';

/** Returns the traces of a session of three turns, with the rewards that the evaluator gave to single traces and completions. */
function tracesOf(
  strategy: string,
  reward: number | null,
  traces: Readonly<Record<string, number>>,
  completions: Readonly<Record<string, number>> = {},
  config: Record<string, unknown> = {},
) {
  const t = new Transcript();
  let history = t.start();
  for (let turn = 0; turn < 3; turn++) history = t.after(history, t.call(history));
  const built = buildTraces({ spec: { strategy, config }, completions: t.completions });
  const explicit = {
    traces: new Map(Object.entries(traces)),
    completions: new Map(Object.entries(completions)),
  };
  const json = encodeTrajectory(built, { status: 'COMPLETED', reward, explicit, error: null, metadata: {} });
  const parsed = trajectorySchema.parse(JSON.parse(json.toString())).traces;
  expect(parsed.map((trace) => trace.trace_id)).toEqual(built.traces.map(traceIdOf));
  return parsed;
}

describe('the reward of a trace', () => {
  it("is the evaluator's own, or else the share of the session's reward", () => {
    const traces = tracesOf('per_request', 0.9, { 'ses.1.1': -2 }, {}, { credit: 'divide' });
    expect(traces.map((trace) => trace.reward)).toEqual([0.3, -2, 0.3].map((one) => expect.closeTo(one)));
  });

  it('is null when the session has no reward, whatever the evaluator gave to the trace', () => {
    const [trace] = tracesOf('prefix_merging', null, { 'ses.1.0': 1 }, { c0: 1 });
    expect(trace?.reward).toBeNull();
    expect(trace?.metadata).not.toHaveProperty('step_rewards');
  });
});

describe('the reward of a reply', () => {
  it('is in the metadata of its trace, in the order of the completions', () => {
    const [trace] = tracesOf('prefix_merging', 1, {}, { c2: 0.5, c0: -1 });
    expect(trace?.completion_ids).toEqual(['c0', 'c1', 'c2']);
    expect(trace?.metadata.step_rewards).toEqual([-1, null, 0.5]);
    const ends = trace?.loss_mask.flatMap((mask, at) => (mask === 1 && trace.loss_mask[at + 1] !== 1 ? [at + 1] : []));
    expect(trace?.metadata.step_ends).toEqual(ends);
    expect(trace?.reward).toBe(1);
  });

  it('is not in the metadata when the evaluator gave none', () => {
    expect(tracesOf('prefix_merging', 1, {})[0]?.metadata).not.toHaveProperty('step_rewards');
  });

  it('is the step reward of the builder `step`, whose other steps keep 0 and the reward of the trace', () => {
    const traces = tracesOf('step', 1, { 'ses.1.2': 4 }, { c0: 0.25 });
    expect(traces.map((trace) => trace.metadata.step_reward)).toEqual([0.25, 0, 4]);
    expect(traces.map((trace) => trace.reward)).toEqual([1, 1, 4]);
  });
});
