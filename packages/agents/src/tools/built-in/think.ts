import { z } from 'zod';
import { defineTool } from '../tool.ts';

/** A place for thoughts. It does nothing. */
export const thinkTool = defineTool({
  name: 'think',
  description: 'Writes down a thought. It changes nothing and finds nothing out; use it to plan or to check your work.',
  effect: 'none',
  parameters: z.object({ thought: z.string() }),
  run: async () => 'Noted.',
});
