/** Files of a new environment, by their path. `{{name}}` stands for its name. */
export const ENVIRONMENT_FILES: Readonly<Record<string, string>> = {
  'environment.mjs': `// An environment: the player adds 1 or 2 until the sum is the target, which depends on the seed.
import { defineEnvironment } from 'floe/plugins';
import { z } from 'zod';

const config = z.strictObject({ max_steps: z.int().min(1).default(10) });

const tools = [
  {
    type: 'function',
    function: {
      name: 'add',
      description: 'Adds a number to the sum.',
      parameters: {
        type: 'object',
        properties: { number: { type: 'integer', enum: [1, 2] } },
        required: ['number'],
      },
    },
  },
];

const targetOf = (seed) => 4 + (seed % 5);

/** Returns the number of the first call; null for a reply that is no valid action. A reply may be anything. */
function readNumber(reply) {
  try {
    const { number } = JSON.parse(reply.tool_calls?.[0]?.function.arguments ?? '') ?? {};
    return reply.tool_calls[0].function.name === 'add' && (number === 1 || number === 2) ? number : null;
  } catch {
    return null;
  }
}

/** Answers every tool call of the reply, or the text if it has none. */
function answer(reply, text) {
  const calls = reply.tool_calls ?? [];
  if (calls.length === 0) return [{ role: 'user', content: text }];
  return calls.map(({ id }) => ({ role: 'tool', tool_call_id: id, content: text }));
}

export const environment = defineEnvironment({
  name: '{{name}}',
  description: 'reach a target by adding 1 or 2',
  config,
  create({ max_steps }) {
    let target = 0;
    let sum = 0;
    let steps = 0;
    return {
      async reset(seed) {
        [target, sum, steps] = [targetOf(seed), 0, 0];
        const introduction = \`Add 1 or 2 until the sum is \${target}. Call the tool add once in each reply.\`;
        return { introduction, messages: [{ role: 'user', content: 'sum: 0' }], tools, stateHash: String(sum) };
      },
      async step(reply) {
        steps++;
        const number = readNumber(reply);
        if (number !== null) sum += number;
        const text = number === null ? 'Call the tool add with the number 1 or 2.' : \`sum: \${sum}\`;
        const terminated = sum >= target;
        return {
          messages: answer(reply, text),
          stateHash: String(sum),
          reward: number !== null && sum === target ? 1 : 0,
          terminated,
          truncated: !terminated && steps >= max_steps,
        };
      },
      async close() {},
    };
  },
  // What a perfect player does. The check and the simulated policy play it.
  perfectPlay(_, seed) {
    const target = targetOf(seed);
    const numbers = [...Array(Math.floor(target / 2)).fill(2), ...Array(target % 2).fill(1)];
    const replies = numbers.map((number, index) => ({
      role: 'assistant',
      content: null,
      tool_calls: [
        { id: \`call_\${index}\`, type: 'function', function: { name: 'add', arguments: JSON.stringify({ number }) } },
      ],
    }));
    return { replies, score: 1 };
  },
});
`,
  'environment.test.mjs': `import assert from 'node:assert/strict';
import { test } from 'node:test';
import { checkEnvironment } from 'floe/testing';
import { environment } from './environment.mjs';

test('perfect play wins, random play does not, equal seeds are equal, and malformed replies are answered', async () => {
  const { signal } = new AbortController();
  const { problems } = await checkEnvironment(environment, {}, { seeds: 20, malformed: 1_000, signal });
  assert.deepEqual(problems, []);
});
`,
  'task.json': `{
  "instruction": "",
  "agent": { "harness": "floe", "settings": { "agent": "gym" } },
  "environment": { "type": "{{name}}", "seed": 1 },
  "runtime": { "backend": "none" },
  "evaluator": { "strategy": "environment" },
  "num_samples": 4
}
`,
  'floe.json': `{ "node": { "plugins": { "environments": { "{{name}}": "environment.mjs" } } } }
`,
  'README.md': `# {{name}}

    npm install
    npm test                                  # the check, without a model
    npx floe env play ./environment.mjs       # play it yourself
    npx floe up --sim --config floe.json      # a floe with a simulated engine, in a terminal of its own
    npx floe submit task.json --watch
`,
};
