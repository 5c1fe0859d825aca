import { pickOne, seededRandom } from '@floe-rl/core';
import { z } from 'zod';
import { wordForm } from '../action.ts';
import { defineGame, type Game, gameFields } from '../game.ts';
import { FIVE_LETTER_WORDS } from './words.ts';

const configSchema = z.strictObject({
  ...gameFields(6),
  /** Words to choose from. They have the same number of letters. */
  words: z
    .array(z.string().regex(/^[a-z]{2,20}$/, 'must be 2 to 20 letters from a to z'))
    .min(2)
    .max(100_000)
    .refine((words) => words.every(({ length }) => length === words[0]?.length), 'must have the same number of letters')
    .refine((words) => new Set(words).size > 1, 'must have two different words')
    .default([...FIVE_LETTER_WORDS]),
  success_reward: z.number().default(1),
});
type Config = z.infer<typeof configSchema>;

function secretOf({ words }: Config, seed: number): string {
  return pickOne(seededRandom(seed), words);
}

/** Returns a mark for each letter of a guess: `G` in its place, `Y` elsewhere in the word, `-` not (or not so often) in the word. */
export function marksOf(guess: string, secret: string): string {
  const marks: string[] = [...guess].map((letter, i) => (letter === secret[i] ? 'G' : '-'));
  const left = [...secret].filter((_, i) => marks[i] !== 'G');
  for (const [i, letter] of [...guess].entries()) {
    const at = left.indexOf(letter);
    if (marks[i] === 'G' || at < 0) continue;
    marks[i] = 'Y';
    left.splice(at, 1);
  }
  return marks.join('');
}

function startGame(config: Config, secret: string): Game<string> {
  const guesses: string[] = [];
  const { length } = secret;
  return {
    rules: `Guess a secret word of ${length} letters. Each guess is marked letter by letter: G the letter is in its place, Y it is elsewhere in the word, - it is not in the word, or not so often.`,
    validActions: () => `words of ${length} letters from a to z`,
    view: () => guesses.map((guess) => `${guess} ${marksOf(guess, secret)}`).join('\n'),
    state: () => [secret, guesses],
    play(guess) {
      guesses.push(guess);
      if (guess !== secret) return { reward: 0, isOver: false, isWon: false, note: '' };
      return { reward: config.success_reward, isOver: true, isWon: true, note: 'You found the word.' };
    },
  };
}

export const wordle = defineGame<Config, string>({
  name: 'wordle',
  description: 'Find a secret word from the marks of each guess.',
  config: configSchema,
  form: ({ words }) =>
    wordForm({ tool: 'guess', description: 'Guesses the word.', parameter: 'word' }, words[0]?.length ?? 5),
  start: (config, seed) => startGame(config, secretOf(config, seed)),
  solve: (config, seed) => ({ actions: [secretOf(config, seed)], score: config.success_reward }),
});
