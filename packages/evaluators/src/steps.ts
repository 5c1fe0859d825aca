import { fieldError, parseAs } from '@floe-rl/core';
import type { TaskStep } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { Evaluation, Evaluator } from './evaluator.ts';

const PATH = 'evaluator.config';

const configSchema = z.strictObject({
  reward: z
    .enum(['mean', 'final'])
    .default('mean')
    .describe('the mean of the rewards of all steps, or the reward of the last one; a step that did not run has 0'),
});

/**
 * The evaluator `steps`, which combines the evaluations of the steps of a task to the reward of the session. Its components contain the reward
 * of each step, and the step's own components with the step's name as a prefix.
 */
export const stepsEvaluator: Evaluator = {
  name: 'steps',
  freshRuntimeByDefault: false,
  checkConfig(config, spec) {
    parseAs(configSchema, config, PATH, PATH);
    if (spec?.refresh_runtime !== true) return;
    const path = 'evaluator.refresh_runtime';
    const message = 'has no effect: the steps are evaluated in the runtime of the agent';
    throw fieldError(path, message);
  },
  async evaluate({ spec, steps = [] }) {
    const { reward: strategy } = parseAs(configSchema, spec.config, PATH, PATH);
    const components: Record<string, number | null> = {};
    const details: Record<string, unknown> = {};
    for (const { name, evaluation } of steps) {
      const reward = evaluation?.reward ?? (evaluation === null ? 0 : null);
      components[name] = reward;
      for (const [key, value] of Object.entries(evaluation?.components ?? {})) components[`${name}.${key}`] = value;
      details[name] = evaluation?.details ?? { skipped: true };
    }
    const rewards = steps.map(({ name }) => components[name] ?? null);
    return { reward: strategy === 'final' ? (rewards.at(-1) ?? null) : meanOf(rewards), components, details };
  },
};

/** Returns the mean of the rewards; `null` when there is no reward or a reward is unknown. */
function meanOf(rewards: readonly (number | null)[]): number | null {
  let sum = 0;
  for (const reward of rewards) {
    if (reward === null) return null;
    sum += reward;
  }
  return rewards.length === 0 ? null : sum / rewards.length;
}

/** Whether the reward or a component of a step is below its minimum. If so, the later steps do not run. A missing component counts as below. */
export function isBelowMinimum({ min_reward: minimum }: TaskStep, { reward, components = {} }: Evaluation): boolean {
  if (minimum === undefined) return false;
  if (typeof minimum === 'number') return reward === null || reward < minimum;
  return Object.entries(minimum).some(([name, least]) => {
    const value = components[name] ?? null;
    return value === null || value < least;
  });
}
