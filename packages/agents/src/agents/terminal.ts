import { z } from 'zod';
import { defineAgent } from '../loop/episode.ts';
import { runLoop } from '../loop/loop.ts';
import { promptSetting, pushWithPrompt } from './own-prompt.ts';

const settingsSchema = z.strictObject({
  prompt: promptSetting,
  command_seconds: z.number().gt(0).max(3_600).default(300).describe('time limit of a command'),
});

const PROMPT = [
  'You do a task on a computer with a shell. No one answers questions, so decide for yourself.',
  'The shell has no terminal: use options in place of prompts and editors, and start servers in the background.',
  'Find out what is there before you change it. After each step verify that it had the effect that you wanted.',
  'The state of the computer is graded, not what you say. When the task is done, reply without a tool call in one sentence.',
].join('\n');

/** Does tasks in a shell, such as the tasks of Harbor. */
export const terminalAgent = defineAgent({
  name: 'terminal',
  description: 'does a task in a shell, as those of Harbor; the state of the sandbox is graded',
  settings: settingsSchema,
  needs: { box: true },
  toolsFor: ({ command_seconds }) => [{ name: 'bash', config: { timeout_seconds: command_seconds } }],
  run: (episode) => {
    pushWithPrompt(episode, PROMPT);
    return runLoop(episode, { answersInText: true });
  },
});
