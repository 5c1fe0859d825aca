import { z } from 'zod';
import { defineAgent } from '../loop/episode.ts';
import { pushInstruction, runLoop } from '../loop/loop.ts';

const settingsSchema = z.strictObject({
  prompt: z.string().min(1).nullable().optional().describe('system prompt instead of that of the agent; null for none'),
});

const PROMPT = `Research the question thoroughly and answer it.
1. Plan with think: which facts does the answer need, and which of them depend on others?
2. Find each fact with search and open_page. Where a tool for it is there, hand questions that stand for themselves to another agent.
3. Check what matters in a second document. When documents contradict each other, find out which is right.
4. Call finish with the answer. If the question asks for a fact, the answer is as short as possible; if it asks for a report, name the
   documents on which each statement rests.`;

/** Researches a question in several steps, with a plan. */
export const deepResearchAgent = defineAgent({
  name: 'deep_research',
  description: 'researches a question in several steps: plans, searches, reads and checks',
  settings: settingsSchema,
  tools: ['search', 'open_page', 'think', 'delegate', 'finish'],
  run: (episode) => {
    const { prompt = PROMPT } = episode.settings;
    pushInstruction(episode, prompt);
    return runLoop(episode, { answersInText: false, requiredTool: 'search' });
  },
});
