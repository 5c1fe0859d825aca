import { z } from 'zod';
import { type DefaultTool, defineAgent } from '../loop/episode.ts';
import { runLoop } from '../loop/loop.ts';
import { promptSetting, pushWithPrompt } from './own-prompt.ts';

/** Python with the usual packages for mathematics. Images are left out, because most models for mathematics read none. */
export const MATH_PYTHON: DefaultTool = {
  name: 'ipython',
  config: { preload: ['numpy as np', 'scipy', 'sympy as sp'], images: false },
};

const PROMPT = [
  'You solve a problem of mathematics. Work step by step.',
  'Use Python for every computation that you could get wrong, and to test your result in a second way, for instance with small cases.',
  'Prefer exact values to decimal ones. Print what you want to see.',
  'When you are sure, reply without a tool call: a short reason, and the final answer once in \\boxed{}.',
].join('\n');

/** Solves problems of mathematics with Python. */
export const mathAgent = defineAgent({
  name: 'math',
  description: 'solves a problem of mathematics with Python; the answer is in \\boxed{}',
  settings: z.strictObject({ prompt: promptSetting }),
  needs: { box: true },
  tools: [MATH_PYTHON, 'think'],
  run: (episode) => {
    pushWithPrompt(episode, PROMPT);
    return runLoop(episode, { answersInText: true });
  },
});
