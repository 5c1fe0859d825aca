import { defineTool, ToolCallRunner } from 'floe/plugins';

const double = defineTool({
  name: 'double',
  description: 'doubles a number',
  effect: 'none',
  parameters: { type: 'object', properties: { number: { type: 'number' } }, required: ['number'] },
  run: async ({ number }) => ({ content: String(2 * number), reward: 1 }),
});

/** A runner with a tool of its own beside those of its task. */
export default class extends ToolCallRunner {
  tools() {
    return [...super.tools(), double];
  }
}
