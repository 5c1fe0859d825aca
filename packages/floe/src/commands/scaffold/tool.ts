/** Files of a new tool, by their path. `{{name}}` stands for its name. */
export const TOOL_FILES: Readonly<Record<string, string>> = {
  'tool.mjs': `// A tool: counts how often a word occurs in a text.
import { defineTool, ToolError } from 'floe/plugins';
import { z } from 'zod';

export const tool = defineTool({
  name: '{{name}}',
  description: 'Counts how often a word occurs in a text.',
  effect: 'none', // 'environment' for a tool that acts in the sandbox, 'agent' for one that changes the conversation
  parameters: z.object({ text: z.string(), word: z.string().min(1) }),
  async run({ text, word }, { count }) {
    // A ToolError is shown to the agent. Any other error is a defect of the tool and ends the episode.
    if (/\\s/.test(word)) throw new ToolError('failed', 'word must be one word');
    count('words_counted');
    return String(text.split(/\\s+/).filter((part) => part === word).length);
  },
});
`,
  'tool.test.mjs': `import assert from 'node:assert/strict';
import { test } from 'node:test';
import { tool } from './tool.mjs';

const context = { services: {}, count() {} };
const { signal } = new AbortController();

test('the tool counts words', async () => {
  assert.equal(await tool.run({ text: 'a b a', word: 'a' }, context, signal), '2');
});

test('the tool refuses two words with an error that the agent reads', async () => {
  await assert.rejects(tool.run({ text: 'a b', word: 'a b' }, context, signal), { name: 'ToolError' });
});
`,
  'task.json': `{
  "instruction": "How often does the text 'a b a' contain the word a?",
  "agent": { "harness": "floe", "settings": { "agent": "tool_call", "tools": ["{{name}}"] } },
  "runtime": { "backend": "none" },
  "evaluator": { "strategy": "answer", "config": { "kind": "exact", "expected": "2" } }
}
`,
  'floe.json': `{ "node": { "plugins": { "tools": { "{{name}}": "tool.mjs" } } } }
`,
  'README.md': `# {{name}}

    npm install
    npm test
    npx floe up --sim --config floe.json      # a floe with a simulated engine, in a terminal of its own
    npx floe submit task.json --watch
`,
};
