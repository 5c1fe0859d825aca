import { z } from 'zod';
import { defineTool } from '../tool.ts';

/** Ends the episode with a final answer, which evaluators of answers read. */
export const finishTool = defineTool({
  name: 'finish',
  description: 'Ends your work. Call it once, when the task is done, with your final answer if the task asks for one.',
  effect: 'agent',
  endsWork: true,
  parameters: z.object({ answer: z.string().default('') }),
  run: async ({ answer }) => ({ content: 'Done.', end: { reason: 'the agent finished', answer } }),
});
