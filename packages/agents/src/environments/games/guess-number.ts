import { randomBelow, seededRandom } from '@floe-rl/core';
import { z } from 'zod';
import { integerForm } from '../action.ts';
import { defineGame, type Game, gameFields } from '../game.ts';

const configSchema = z
  .strictObject({
    ...gameFields(7),
    min: z.int().min(-1_000_000_000).max(1_000_000_000).default(1),
    max: z.int().min(-1_000_000_000).max(1_000_000_000).default(100),
    success_reward: z.number().default(1),
  })
  .refine(({ min, max }) => min < max, { path: ['max'], message: 'must be greater than min' });
type Config = z.infer<typeof configSchema>;

function secretOf({ min, max }: Config, seed: number): number {
  return min + randomBelow(seededRandom(seed), max - min + 1);
}

function startGame(config: Config, secret: number): Game<number> {
  let [low, high] = [config.min, config.max];
  return {
    rules: `I think of an integer from ${config.min} to ${config.max}. Guess it. After each guess I say whether my number is higher or lower.`,
    validActions: () => `integers from ${config.min} to ${config.max}`,
    view: () => '',
    state: () => [secret, low, high],
    play(guess) {
      if (guess === secret) {
        return { reward: config.success_reward, isOver: true, isWon: true, note: `Yes, it is ${secret}.` };
      }
      if (guess < secret) low = Math.max(low, guess + 1);
      else high = Math.min(high, guess - 1);
      const note = `My number is ${guess < secret ? 'higher' : 'lower'} than ${guess}.`;
      return { reward: 0, isOver: false, isWon: false, note };
    },
  };
}

export const guessNumber = defineGame<Config, number>({
  name: 'guess_number',
  description: 'Guess a number; each wrong guess is answered by higher or lower.',
  config: configSchema,
  form: ({ min, max }) =>
    integerForm({ tool: 'guess', description: 'Guesses the number.', parameter: 'number' }, min, max),
  start: (config, seed) => startGame(config, secretOf(config, seed)),
  solve: (config, seed) => ({ actions: [secretOf(config, seed)], score: config.success_reward }),
});
