import { FloeError } from '@floe-rl/core';
import { type TaskRequestInput, type Trace, trajectorySchema } from '@floe-rl/core/schema';
import type { Evaluation, EvaluationContext } from '@floe-rl/evaluators';
import { describe, expect, it } from 'vitest';
import { Transcript } from '../../../../capture/test/tokens/transcript.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { bench } from '../session-bench.ts';

/** Runs a session of two unrelated model calls, which make two traces, and evaluates it. */
async function evaluated(evaluate: (context: EvaluationContext) => Evaluation, task: Partial<TaskRequestInput> = {}) {
  const t = new Transcript();
  t.call(t.start());
  t.call(t.start());
  const contexts: EvaluationContext[] = [];
  const { attempt, deps } = bench({
    task: { evaluator: { strategy: 'fake' }, instruction: 'Solve it.', metadata: { row: 7 }, ...task },
    session: { completions: () => t.completions },
    evaluate: async (context) => {
      contexts.push(context);
      return evaluate(context);
    },
  });
  const result = await runSession(attempt, deps);
  if (result === null) throw new Error('the session has a result');
  const trajectory = result.trajectory && trajectorySchema.parse(JSON.parse(result.trajectory.toString()));
  const traces: readonly Trace[] = trajectory?.traces ?? [];
  return { summary: result.summary, trajectory, traces, contexts, completions: t.completions };
}

describe('an evaluator', () => {
  it("receives the task, the main agent's conversation and the traces", async () => {
    const { contexts, completions, traces } = await evaluated(() => ({ reward: 1, details: {} }));
    const [first, last] = completions;
    const { session, status } = contexts[0] as EvaluationContext;
    expect(contexts).toHaveLength(1);
    expect(session).toMatchObject({ sessionId: 'ses_1', attempt: 1, instruction: 'Solve it.', metadata: { row: 7 } });
    expect(status).toBe('COMPLETED');
    expect(session.messages).toEqual([...(last?.request.messages ?? []), last?.message]);
    expect(session.traces.map(({ traceId }) => traceId)).toEqual(traces.map((trace) => trace.trace_id));
    expect(session.traces[0]).toMatchObject({
      completionIds: ['c0'],
      trainedTokens: 5,
      finishReason: 'stop',
      step: null,
      promptMessages: first?.request.messages,
    });
    expect(session.traces[0]?.responseMessages()).toEqual([first?.message]);
  });

  it('gives the session components, and single traces and replies rewards of their own', async () => {
    const { summary, traces } = await evaluated(({ session }) => ({
      reward: 0.5,
      details: {},
      components: { tests: 1, style: null },
      traceRewards: { [session.traces[1]?.traceId ?? '']: -1 },
      stepRewards: { c0: 0.125 },
    }));
    expect(summary).toMatchObject({
      outcome: 'completed',
      reward: 0.5,
      reward_components: { tests: 1, style: null },
    });
    expect(traces.map((trace) => trace.reward)).toEqual([0.5, -1]);
    expect(traces.map((trace) => trace.metadata.step_rewards)).toEqual([[0.125], [null]]);
  });

  it('is given no traces when they cannot be built after an agent that failed, and still scores the session', async () => {
    const builder = { strategy: 'prefix_merging', config: { unknown: true } };
    const t = new Transcript();
    t.call(t.start());
    const { attempt, deps } = bench({
      task: { evaluator: { strategy: 'fake' }, builder },
      exec: async () => ({ ...(await Promise.reject(new FloeError('turn_limit', 'all turns are used'))) }),
      session: { completions: () => t.completions },
      evaluate: async ({ session }) => ({ reward: 0.25, details: { traces: session.traces.length } }),
    });
    const lenient = { ...deps, builders: { ...deps.builders, check: () => {} } };
    const result = await runSession(attempt, lenient);
    expect(result).toMatchObject({
      trajectory: null,
      summary: { outcome: 'truncated_turns', reward: 0.25, reward_details: { traces: 0 }, trace_count: 0 },
    });
  });
});

describe('a session whose evaluation fails', () => {
  it.each<[string, () => Evaluation]>([
    [
      'with an error',
      () => {
        throw new FloeError('evaluator_failed', 'no report');
      },
    ],
    ['with a reward that is not a number', () => ({ reward: Number.NaN, details: {}, components: { a: 1 } })],
    ['with a reward for a trace that does not exist', () => ({ reward: 1, details: {}, traceRewards: { t9: 1 } })],
  ])('%s is a verifier_error without a reward in any trace', async (_, evaluate) => {
    const { summary, trajectory } = await evaluated(evaluate);
    expect(summary).toMatchObject({
      ...{ outcome: 'verifier_error', reward: null, reward_components: {} },
      error: { code: 'evaluator_failed', stage: 'eval' },
    });
    expect(trajectory).toMatchObject({ status: 'ERROR', error: summary.error?.message });
    expect(trajectory?.traces.map((trace) => trace.reward)).toEqual([null, null]);
  });
});

describe('a session whose traces cannot be built', () => {
  it('is not evaluated', async () => {
    const t = new Transcript();
    t.call(t.start());
    let evaluations = 0;
    const { attempt, deps } = bench({
      task: { evaluator: { strategy: 'fake' }, builder: { strategy: 'prefix_merging', config: { unknown: true } } },
      session: { completions: () => t.completions },
      evaluate: async () => {
        evaluations++;
        return { reward: 1, details: {} };
      },
    });
    const lenient = { ...deps, builders: { ...deps.builders, check: () => {} } };
    const result = await runSession(attempt, lenient);
    expect(result?.summary).toMatchObject({ outcome: 'env_error', reward: null, error: { stage: 'build' } });
    expect(evaluations).toBe(0);
  });
});
