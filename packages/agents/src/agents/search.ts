import { z } from 'zod';
import { defineAgent } from '../loop/episode.ts';
import { pushInstruction, runLoop } from '../loop/loop.ts';

const settingsSchema = z.strictObject({
  prompt: z.string().min(1).nullable().optional().describe('system prompt instead of that of the agent; null for none'),
});

const PROMPT = `Answer the question with facts that you find with the tool search; open_page shows a whole document.
Search for one fact at a time with few, specific words, and use other words when nothing fits.
When you know the answer, call finish with it. The answer is as short as possible: a name, a number, a date or a few words.`;

/** Answers a question from documents that it searches. */
export const searchAgent = defineAgent({
  name: 'search',
  description: 'answers a question from documents that it searches',
  settings: settingsSchema,
  tools: ['search', 'open_page', 'finish'],
  run: (episode) => {
    const { prompt = PROMPT } = episode.settings;
    pushInstruction(episode, prompt);
    return runLoop(episode, { answersInText: true, requiredTool: 'search' });
  },
});
