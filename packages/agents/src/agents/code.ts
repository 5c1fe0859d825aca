import { z } from 'zod';
import { defineAgent } from '../loop/episode.ts';
import { runLoop } from '../loop/loop.ts';
import { promptSetting, pushWithPrompt } from './own-prompt.ts';

const settingsSchema = z.strictObject({
  prompt: promptSetting,
  solution: z
    .string()
    .regex(/^[^\0]+$/)
    .default('solution.py')
    .describe('file in which the agent is to write its solution, relative to the working directory'),
});

const PROMPT = [
  'You write a program that solves a problem. It is judged by tests that you cannot see.',
  'Write the program to the file SOLUTION in {workdir}. Nothing else of your work is read.',
  'Read the problem for its limits, and choose an algorithm that is fast enough for the largest input.',
  'Run the program on the examples and on inputs of your own: the smallest ones, the largest ones, and odd ones.',
  'When it is right, reply without a tool call and say in one sentence what you did.',
].join('\n');

/** Writes a program for a problem, which hidden tests judge. */
export const codeAgent = defineAgent({
  name: 'code',
  description: 'writes a program to a file, which hidden tests judge',
  settings: settingsSchema,
  needs: { box: true },
  tools: ['str_replace_editor', 'bash', { name: 'ipython', config: { images: false } }],
  run: (episode) => {
    pushWithPrompt(episode, PROMPT.replace('SOLUTION', episode.settings.solution));
    return runLoop(episode, { answersInText: true });
  },
});
