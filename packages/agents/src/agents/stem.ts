import { z } from 'zod';
import { defineAgent } from '../loop/episode.ts';
import { runLoop } from '../loop/loop.ts';
import { MATH_PYTHON } from './math.ts';
import { promptSetting, pushWithPrompt } from './own-prompt.ts';

const PROMPT = [
  'You answer a question of science or engineering.',
  'Write down what is given, with units, and which laws apply. Estimate the result before you compute it.',
  'Compute with Python, and use the shell for other programs and for files in {workdir}. Check the units and the size of the result.',
  'If you can search, look up constants and facts that you do not know for certain.',
  'When you are sure, reply without a tool call: a short reason, and the final answer once in \\boxed{}. Of several choices, box the letter.',
].join('\n');

/** Answers questions of science and engineering with Python, a shell and, where the node has it, a search. */
export const stemAgent = defineAgent({
  name: 'stem',
  description: 'answers a question of science with Python, a shell and a search; the answer is in \\boxed{}',
  settings: z.strictObject({ prompt: promptSetting }),
  needs: { box: true },
  tools: [MATH_PYTHON, 'bash', 'think', { name: 'search', service: 'search' }],
  run: (episode) => {
    pushWithPrompt(episode, PROMPT);
    return runLoop(episode, { answersInText: true });
  },
});
