import { z } from 'zod';
import { defineAgent } from '../loop/episode.ts';
import { runLoop } from '../loop/loop.ts';
import { promptSetting, pushWithPrompt } from './own-prompt.ts';

const PROMPT = [
  'You work on a repository and resolve an issue in it.',
  'First find the code that the issue is about, and read it with what calls it. Then reproduce the problem with a small script.',
  'Make the smallest change that resolves the issue for all inputs and not only for the example. Keep the style of the code.',
  'Run your script and the tests that cover the code. Do not change tests to make them pass, and remove files that you only needed yourself.',
  'Call `finish` when the repository is as it should be. Your work is graded by what is in the repository then.',
].join('\n');

/** Resolves an issue in a repository, which tests grade. */
export const sweAgent = defineAgent({
  name: 'swe',
  description: 'resolves an issue in a repository, which tests judge',
  settings: z.strictObject({ prompt: promptSetting }),
  needs: { box: true },
  tools: ['bash', 'str_replace_editor', { name: 'code_search', isOptional: true }, 'finish'],
  run: (episode) => {
    pushWithPrompt(episode, PROMPT);
    return runLoop(episode, { answersInText: false });
  },
});
