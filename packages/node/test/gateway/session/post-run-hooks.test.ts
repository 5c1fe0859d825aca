import { FloeError, systemClock } from '@floe-rl/core';
import { trajectorySchema } from '@floe-rl/core/schema';
import { type PostRunEvent, type PostRunModule, postRunHook } from '@floe-rl/evaluators';
import { describe, expect, it } from 'vitest';
import { Transcript } from '../../../../capture/test/tokens/transcript.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { type BenchParts, bench, ENDED_WELL } from '../session-bench.ts';

/** Runs a session of one model call whose reward is 0.5, with a hook for each function. */
async function runWith(hooks: readonly PostRunModule['postRun'][], parts: BenchParts = {}) {
  const t = new Transcript();
  t.call(t.start());
  const { attempt, deps } = bench({
    task: { evaluator: { strategy: 'fake' } },
    session: { completions: () => t.completions },
    evaluate: async () => ({ reward: 0.5, details: { graded: true }, components: { tests: 0.5 } }),
    hooks: hooks.map((postRun, index) =>
      postRunHook(`hook${index}`, 'a test', { postRun }, { clock: systemClock, timeoutSeconds: 60 }),
    ),
    ...parts,
  });
  const result = await runSession(attempt, deps);
  if (result === null) throw new Error('the session has a result');
  const trajectory = trajectorySchema.parse(JSON.parse(result.trajectory?.toString() ?? 'null'));
  return { summary: result.summary, rewards: trajectory.traces.map((trace) => trace.reward) };
}

describe('the post-run hooks of a node', () => {
  it('run one after the other with the evaluation and summary as changed so far', async () => {
    const events: PostRunEvent[] = [];
    const { summary, rewards } = await runWith([
      (event) => {
        events.push(event);
        return { reward: 0.25, components: { mine: 1 } };
      },
      async (event) => {
        events.push(event);
        return { traceRewards: { [event.session.traces[0]?.traceId ?? '']: -3 }, details: { second: true } };
      },
    ]);
    expect(events.map(({ evaluation }) => evaluation.reward)).toEqual([0.5, 0.25]);
    expect(events.map((event) => event.summary.reward)).toEqual([0.5, 0.25]);
    expect(events[0]).toMatchObject({
      task: { instruction: 'x' },
      summary: { outcome: 'completed', trace_count: 1, artifacts: null },
    });
    expect(summary).toMatchObject({
      ...{ outcome: 'completed', reward: 0.25, reward_components: { mine: 1 }, dropped: null },
      reward_details: { graded: true, second: true },
    });
    expect(rewards).toEqual([-3]);
  });

  it('can drop a sample, which keeps its reward', async () => {
    const { summary } = await runWith([() => ({ drop: 'a duplicate' })]);
    expect(summary).toMatchObject({
      ...{ outcome: 'completed', reward: 0.5, dropped: 'a duplicate' },
      policy: { use: 'drop', in_baseline: false },
    });
  });

  it('make the session a verifier_error without a reward when one fails, and the next does not run', async () => {
    let later = 0;
    const { summary, rewards } = await runWith([
      () => ({ drop: 'a duplicate' }),
      () => {
        throw new Error('the database is away');
      },
      () => {
        later++;
      },
    ]);
    expect(summary).toMatchObject({
      ...{ outcome: 'verifier_error', reward: null, reward_components: {}, dropped: null },
      error: { code: 'evaluator_failed', message: 'post-run hook hook1: the database is away', stage: 'eval' },
    });
    expect(rewards).toEqual([null]);
    expect(later).toBe(0);
  });

  it('keep the outcome of an agent that had failed before, without a reward', async () => {
    const { summary } = await runWith([() => Promise.reject(new Error('no'))], {
      exec: async () => ({ ...ENDED_WELL, exitCode: 3 }),
    });
    expect(summary).toMatchObject({ outcome: 'agent_error', reward: null });
  });

  it('can give a reward to a session whose task has no evaluator', async () => {
    const { summary, rewards } = await runWith([() => ({ reward: 2 })], { task: { evaluator: null } });
    expect(summary).toMatchObject({ outcome: 'completed', reward: 2 });
    expect(rewards).toEqual([2]);
  });

  it('do not run after a failed evaluation', async () => {
    let runs = 0;
    const { summary } = await runWith(
      [
        () => {
          runs++;
          return { reward: 1 };
        },
      ],
      {
        evaluate: async () => {
          throw new FloeError('evaluator_failed', 'no report');
        },
      },
    );
    expect(summary).toMatchObject({ outcome: 'verifier_error', reward: null });
    expect(runs).toBe(0);
  });
});
