import { z } from 'zod';
import { defineAgent } from '../loop/episode.ts';
import { pushInstruction, runLoop } from '../loop/loop.ts';

const settingsSchema = z.strictObject({
  answers_in_text: z
    .boolean()
    .default(true)
    .describe('whether a reply without a tool call is the final answer; otherwise the agent must call `finish`'),
  required_tool: z
    .string()
    .min(1)
    .optional()
    .describe('tool that the agent is reminded of if it ends without a call of it'),
});

/** Works with the tools that the task names, in the way that its instruction says. */
export const toolCallAgent = defineAgent({
  name: 'tool_call',
  description: 'works with the tools of the task until it answers',
  settings: settingsSchema,
  run: (episode) => {
    const { answers_in_text: answersInText, required_tool: requiredTool } = episode.settings;
    pushInstruction(episode);
    return runLoop(episode, { answersInText, ...(requiredTool === undefined ? {} : { requiredTool }) });
  },
});
