import { FloeError } from '@floe-rl/core';
import { type TaskRequestInput, taskRequestSchema } from '@floe-rl/core/schema';
import { type Evaluation, type EvaluationContext, evaluatorRegistry } from '@floe-rl/evaluators';
import type { ExecResult } from '@floe-rl/sandbox';
import { describe, expect, it } from 'vitest';
import { stepsEvaluator } from '../../../../evaluators/src/steps.ts';
import { createTaskCheck } from '../../../src/gateway/node/plugins.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { shellHarness } from '../../../src/harnesses/shell.ts';
import { bench, ENDED_WELL, runtimeOf } from '../session-bench.ts';

type StepInput = NonNullable<TaskRequestInput['steps']>[number];

const step = (name: string, more: Partial<StepInput> = {}): StepInput => ({
  name,
  instruction: `do ${name}`,
  evaluator: { strategy: 'fake', config: { step: name } },
  ...more,
});

type Setup = {
  /** Result of the evaluation of each step, by its name. */
  readonly rewards: Readonly<Record<string, number | Error>>;
  readonly exec?: (instruction: string, signal: AbortSignal) => Promise<ExecResult>;
  /** Result of each prepare action, which is a command with this text. */
  readonly prepare?: (command: string) => ExecResult;
};

/** Runs a session with steps. Returns its result and what happened, in order. */
async function run(steps: readonly StepInput[], { rewards, exec, prepare }: Setup) {
  const events: string[] = [];
  const alive = new Set<never>();
  let instruction = '';
  const { attempt, deps, clock } = bench({
    task: { instruction: 'the task', steps: [...steps], evaluator: { strategy: 'steps' }, budgets: { agent: 50 } },
    start: async () => {
      const runtime = runtimeOf(async (signal) => {
        events.push(`agent: ${instruction}`);
        return exec?.(instruction, signal) ?? ENDED_WELL;
      }, alive);
      const plain = runtime.exec;
      return Object.assign(runtime, {
        writeFiles: async (files: readonly { content: string | Buffer }[]) => {
          instruction = String(files[0]?.content);
        },
        exec: async (request: Parameters<typeof plain>[0], signal: AbortSignal) => {
          if (request.withProxy === true || !String(request.command).startsWith('prepare'))
            return plain(request, signal);
          events.push(String(request.command));
          return prepare?.(String(request.command)) ?? ENDED_WELL;
        },
      });
    },
    evaluate: async ({ spec, session }: EvaluationContext): Promise<Evaluation> => {
      const name = String(spec.config.step);
      events.push(`evaluate ${name}: ${session.instruction}`);
      const reward = rewards[name] ?? 0;
      if (reward instanceof Error) throw reward;
      return { reward, details: {} };
    },
  });
  const fake = deps.evaluators.get('fake');
  const evaluators = { ...deps.evaluators, get: (name: string) => (name === 'steps' ? stepsEvaluator : fake) };
  const ended = runSession(attempt, { ...deps, evaluators });
  return { events, clock, ended };
}

describe('a session with steps', () => {
  const two = [step('a'), step('b', { prepare: [{ type: 'exec', command: 'prepare b' }] })];

  it('runs the agent with the instruction of each step, and evaluates it before the next one', async () => {
    const { events, ended } = await run(two, { rewards: { a: 1, b: 0.5 } });
    expect((await ended)?.summary).toMatchObject({
      outcome: 'completed',
      reward: 0.75,
      reward_components: { a: 1, b: 0.5 },
    });
    const ran = ['agent: do a', 'evaluate a: do a', 'prepare b', 'agent: do b', 'evaluate b: do b'];
    expect(events).toEqual(ran);
  });

  it('ends after a step with less than its minimum', async () => {
    const { events, ended } = await run([step('a', { min_reward: 1 }), step('b')], { rewards: { a: 0.5 } });
    expect((await ended)?.summary).toMatchObject({ outcome: 'completed', reward: 0.25, reward_components: { b: 0 } });
    expect(events).toEqual(['agent: do a', 'evaluate a: do a']);
  });

  it('ends after a step that the agent fails, which is evaluated', async () => {
    const exec = async (): Promise<ExecResult> => ({ ...ENDED_WELL, exitCode: 1 });
    const { events, ended } = await run(two, { rewards: { a: 1 }, exec });
    expect((await ended)?.summary).toMatchObject({ outcome: 'agent_error', reward: 0.5 });
    expect(events).toEqual(['agent: do a', 'evaluate a: do a']);
  });

  it('ends without a reward when the evaluation of a step fails', async () => {
    const { ended } = await run(two, { rewards: { a: new FloeError('evaluator_failed', 'no report') } });
    expect((await ended)?.summary).toMatchObject({ outcome: 'verifier_error', reward: null });
  });

  it('blames the agent when a later step cannot be prepared', async () => {
    const prepare = (): ExecResult => ({ ...ENDED_WELL, exitCode: 1 });
    const { ended } = await run(two, { rewards: { a: 1 }, prepare });
    expect((await ended)?.summary).toMatchObject({ outcome: 'agent_error', error: { code: 'prepare_failed' } });
    const first = await run([step('a', { prepare: [{ type: 'exec', command: 'prepare a' }] })], {
      rewards: {},
      prepare,
    });
    expect((await first.ended)?.summary).toMatchObject({ outcome: 'env_error', reward: null });
  });
});

describe('the steps of a submitted task', () => {
  const check = createTaskCheck(new Map([['shell', shellHarness]]), evaluatorRegistry());
  const submit = (steps: readonly StepInput[], evaluator: string | null): void =>
    check(
      taskRequestSchema.parse({
        instruction: 'x',
        agent: { harness: 'shell', custom_shell: 'true' },
        steps,
        evaluator: evaluator === null ? null : { strategy: evaluator },
      }),
    );
  const completed = { strategy: 'session_completed' };

  it('need the evaluator that combines their rewards, and the evaluator needs them', () => {
    expect(() => submit([step('a', { evaluator: completed })], 'steps')).not.toThrow();
    expect(() => submit([step('a', { evaluator: completed })], null)).toThrow('evaluator.strategy: must be steps');
    expect(() => submit([], 'steps')).toThrow('evaluator.strategy: steps is only for a task with steps');
  });

  it.each<[string, StepInput['evaluator']]>([
    ['steps.1.evaluator: no evaluator "ghost"', { strategy: 'ghost' }],
    ['steps.1.evaluator: evaluator.config: ', { strategy: 'session_completed', config: { more: 1 } }],
    ['steps.1.evaluator.refresh_runtime: must be false', { strategy: 'session_completed', refresh_runtime: true }],
  ])('are refused with %s', (message, evaluator) => {
    expect(() => submit([step('a', { evaluator: completed }), step('b', { evaluator })], 'steps')).toThrow(message);
  });
});
