/** Files of a new evaluator, by their path. `{{name}}` stands for its name. */
export const EVALUATOR_FILES: Readonly<Record<string, string>> = {
  'evaluator.mjs': `// An evaluator: the reward is 1 when the last message has at most as many words as the task allows.
export const createEvaluator = ({ refusal }) => ({
  freshRuntimeByDefault: false,
  checkConfig(config) {
    if (typeof config.words !== 'number') throw refusal('words', 'must be a number');
  },
  async evaluate({ session, spec }) {
    const words = String(session.messages.at(-1)?.content ?? '').split(/\\s+/).length;
    return { reward: words <= Number(spec.config.words) ? 1 : 0, details: { words }, components: { words } };
  },
});
`,
  'evaluator.test.mjs': `import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createEvaluator } from './evaluator.mjs';

const refusal = (field, message) => new Error(\`\${field}: \${message}\`);
const evaluator = createEvaluator({ refusal });
const rewardOf = async (content) => {
  const session = { messages: [{ role: 'assistant', content }] };
  return (await evaluator.evaluate({ session, spec: { config: { words: 3 } } })).reward;
};

test('the evaluator rewards a short answer and no long one', async () => {
  assert.equal(await rewardOf('one two three'), 1);
  assert.equal(await rewardOf('one two three four'), 0);
});

test('the evaluator refuses a task without the number of words', () => {
  assert.throws(() => evaluator.checkConfig({}), /words: must be a number/);
});
`,
  'task.json': `{
  "instruction": "Answer briefly: what is floe?",
  "agent": { "harness": "floe", "settings": { "agent": "tool_call" } },
  "runtime": { "backend": "none" },
  "evaluator": { "strategy": "{{name}}", "config": { "words": 200 } }
}
`,
  'floe.json': `{ "node": { "evaluators": { "{{name}}": "evaluator.mjs" } } }
`,
  'README.md': `# {{name}}

    npm install
    npm test
    npx floe up --sim --config floe.json      # a floe with a simulated engine, in a terminal of its own
    npx floe submit task.json --watch
`,
};
