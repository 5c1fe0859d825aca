/** Files of a new agent, by their path. `{{name}}` stands for its name. */
export const AGENT_FILES: Readonly<Record<string, string>> = {
  'agent.mjs': `// An agent: answers, then checks its own answer and gives the final one.
import { defineAgent } from 'floe/plugins';
import { z } from 'zod';

export const agent = defineAgent({
  name: '{{name}}',
  description: 'answers, checks its answer, and answers once more',
  settings: z.strictObject({ checks: z.int().min(0).max(10).default(1) }),
  async run({ conversation, instruction, settings, count }) {
    conversation.push({ role: 'user', content: instruction });
    let turn = await conversation.ask();
    for (let check = 0; check < settings.checks; check++) {
      count('checks');
      conversation.push({ role: 'user', content: 'Check your answer, then give the final one.' });
      turn = await conversation.ask();
    }
    // The reward comes from the task's evaluator, so the agent gives no score.
    return { status: 'finished', score: null, reason: 'it has checked its answer', answer: turn.message.content ?? '' };
  },
});
`,
  'agent.test.mjs': `import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { startTestService } from 'floe/testing';

/** What the simulated policy replies: 41 first, and 42 after the check. */
const scenarios = [
  {
    name: 'answers',
    rules: [{ when: { assistant_turns: 0 }, reply: [{ text: '41' }] }, { reply: [{ text: '42' }] }],
  },
];

test('the agent gives its final answer after a check, and gets the reward for it', async () => {
  const agents = { '{{name}}': fileURLToPath(new URL('./agent.mjs', import.meta.url)) };
  const service = await startTestService({
    sim: { scenarios },
    server: { plugins: ['{{name}}'] },
    node: { default_backend: 'none', plugins: { agents } },
  });
  try {
    await service.client.submit({
      instruction: 'What is 6 * 7?',
      agent: { harness: 'floe', settings: { agent: '{{name}}' } },
      evaluator: { strategy: 'answer', config: { kind: 'exact', expected: '42' } },
    });
    for await (const result of service.client.results()) {
      assert.equal(result.reward, 1);
      assert.equal(result.agent.episode.metrics.checks, 1);
      break;
    }
  } finally {
    await service.close();
  }
});
`,
  'task.json': `{
  "instruction": "What is 6 * 7?",
  "agent": { "harness": "floe", "settings": { "agent": "{{name}}" } },
  "runtime": { "backend": "none" },
  "evaluator": { "strategy": "answer", "config": { "kind": "exact", "expected": "42" } }
}
`,
  'floe.json': `{ "node": { "plugins": { "agents": { "{{name}}": "agent.mjs" } } } }
`,
  'README.md': `# {{name}}

    npm install
    npm test                                  # one episode with a simulated engine
    npx floe up --sim --config floe.json      # a floe with a simulated engine, in a terminal of its own
    npx floe submit task.json --watch
`,
};
