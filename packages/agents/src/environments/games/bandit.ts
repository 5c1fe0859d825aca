import { seededRandom } from '@floe-rl/core';
import { z } from 'zod';
import { actionFormatSchema, integerForm } from '../action.ts';
import { defineGame, type Game, gameFields, MAX_STEPS } from '../game.ts';

const { invalid_action_reward } = gameFields(1);
const configSchema = z
  .strictObject({
    action_format: actionFormatSchema,
    invalid_action_reward,
    arms: z.int().min(2).max(100).default(5),
    /** Number of pulls in an episode. An invalid action uses one, too. */
    pulls: z.int().min(1).max(MAX_STEPS).default(20),
  })
  .transform((config) => ({ ...config, max_steps: config.pulls }));
type Config = z.infer<typeof configSchema>;

/** The lowest and the highest probability that an arm pays. */
const [LOWEST, HIGHEST] = [0.05, 0.95];

type Machine = {
  /** Probability of each arm that it pays. */
  readonly chances: readonly number[];
  readonly best: number;
  /** A random number in [0, 1) for each pull. */
  readonly draws: readonly number[];
};

function makeMachine({ arms, pulls }: Config, seed: number): Machine {
  const random = seededRandom(seed);
  const chances = Array.from({ length: arms }, () => LOWEST + random() * (HIGHEST - LOWEST));
  return { chances, best: Math.max(...chances), draws: Array.from({ length: pulls }, random) };
}

function startGame({ arms, pulls }: Config, { chances, best, draws }: Machine): Game<number> {
  const results = chances.map(() => ({ pulls: 0, paid: 0 }));
  let used = 0;
  return {
    rules: `You play a slot machine with ${arms} arms. Each arm pays 1 coin with a probability of its own that does not change, and otherwise nothing. Pull an arm ${pulls} times in all, and choose so that you may expect as many coins as possible.`,
    validActions: () => `1 to ${arms}`,
    view: () => results.map(({ pulls, paid }, i) => `Arm ${i + 1}: ${pulls} pulls, ${paid} coins`).join('\n'),
    state: () => [chances, results],
    play(arm, step) {
      const chance = chances[arm - 1] ?? 0;
      const hasPaid = (draws[step] ?? 1) < chance;
      const result = results[arm - 1];
      if (result !== undefined) {
        result.pulls++;
        if (hasPaid) result.paid++;
      }
      used++;
      const note = `Arm ${arm} paid ${hasPaid ? '1 coin' : 'nothing'}.`;
      return { reward: chance / best / pulls, isOver: used === pulls, isWon: chance === best, note };
    },
  };
}

export const bandit = defineGame<Config, number>({
  name: 'bandit',
  description: 'Find the arm of a slot machine that pays best, and pull it.',
  config: configSchema,
  form: ({ arms }) => integerForm({ tool: 'pull', description: 'Pulls an arm.', parameter: 'arm' }, 1, arms),
  start: (config, seed) => startGame(config, makeMachine(config, seed)),
  solve(config, seed) {
    const { chances, best } = makeMachine(config, seed);
    return { actions: Array.from({ length: config.pulls }, () => chances.indexOf(best) + 1), score: 1 };
  },
});
