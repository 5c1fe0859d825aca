import { evaluatorSpecSchema, taskStepSchema } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import type { Evaluation, StepEvaluation } from '../src/evaluator.ts';
import { isBelowMinimum, stepsEvaluator } from '../src/steps.ts';
import { directoryRuntime } from './directory-runtime.ts';
import { sessionOf } from './evaluated-session.ts';

const { signal } = new AbortController();

async function combined(steps: readonly StepEvaluation[], config: Record<string, unknown> = {}): Promise<Evaluation> {
  const spec = evaluatorSpecSchema.parse({ strategy: 'steps', config });
  const runtime = await directoryRuntime();
  const context = { spec, status: 'COMPLETED' as const, runtime, freshRuntime: null, session: sessionOf(), steps };
  return stepsEvaluator.evaluate(context, signal);
}

const graded = (name: string, reward: number | null, components = {}): StepEvaluation => ({
  name,
  evaluation: { reward, components, details: { of: name } },
});

describe('the evaluator steps', () => {
  const steps = [graded('first', 1, { style: 0.5 }), graded('second', 0.5), { name: 'third', evaluation: null }];

  it('gives the mean of the rewards, in which a step that did not run has 0', async () => {
    expect(await combined(steps)).toEqual({
      reward: 0.5,
      components: { first: 1, 'first.style': 0.5, second: 0.5, third: 0 },
      details: { first: { of: 'first' }, second: { of: 'second' }, third: { skipped: true } },
    });
  });

  it('gives the reward of the last step, which is 0 when it did not run', async () => {
    expect(await combined(steps, { reward: 'final' })).toMatchObject({ reward: 0 });
    expect(await combined(steps.slice(0, 2), { reward: 'final' })).toMatchObject({ reward: 0.5 });
  });

  it('gives no reward when that of a step is unknown', async () => {
    expect(await combined([graded('first', 1), graded('second', null)])).toMatchObject({
      reward: null,
      components: { first: 1, second: null },
    });
    expect(await combined([])).toMatchObject({ reward: null });
  });

  it.each([
    ['evaluator.config.reward', { config: { reward: 'sum' } }],
    ['evaluator.refresh_runtime', { refresh_runtime: true }],
  ])('rejects an invalid %s', (field, input) => {
    const spec = evaluatorSpecSchema.parse({ strategy: 'steps', ...input });
    expect(() => stepsEvaluator.checkConfig(spec.config, spec)).toThrow(field);
  });
});

describe('isBelowMinimum', () => {
  it.each<[string, number | Record<string, number> | undefined, number | null, Record<string, number>, boolean]>([
    ['no minimum', undefined, null, {}, false],
    ['the minimum', 0.5, 0.5, {}, false],
    ['less than the minimum', 0.5, 0.4, {}, true],
    ['an unknown reward', 0, null, {}, true],
    ['enough of a component', { style: 1 }, 0, { style: 1 }, false],
    ['too little of a component', { style: 1 }, 1, { style: 0.9 }, true],
    ['a component that is missing', { style: 0 }, 1, {}, true],
  ])('for %s', (_case, min_reward, reward, components, below) => {
    const evaluator = { strategy: 'session_completed' };
    const step = taskStepSchema.parse({ name: 's', instruction: '', evaluator, min_reward });
    expect(isBelowMinimum(step, { reward, components, details: {} })).toBe(below);
  });
});
