// The agents of docs/guides/use-an-sdk.md, each run by the `shell` harness in a session of its own.
import { readdir, readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { checkAgainstLedger } from '../../src/sim/index.ts';
import { startTestStack } from '../../test/e2e/stack.ts';

const HERE = dirname(fileURLToPath(import.meta.url));
const AGENTS = (await readdir(join(HERE, 'agents'))).sort();
const guide = await readFile(join(HERE, '..', 'docs', 'guides', 'use-an-sdk.md'), 'utf8');

const DIALECTS = {
  'anthropic.mjs': 'anthropic',
  'google-genai.mjs': 'gemini',
  'openai-agents.mjs': 'openai_responses',
  'openai-chat.mjs': 'openai_chat',
  'openai-responses.mjs': 'openai_responses',
  'vercel-ai.mjs': 'anthropic',
};

const call = (command) => ({ call: { tool: 'bash', arguments: { command } } });
const SCENARIO = {
  name: 'greeting',
  match: { contains: 'greeting' },
  rules: [
    { when: { assistant_turns: 0, tools: ['bash'] }, reply: [{ think: 8 }, call('echo hello > greeting.txt')] },
    { when: { assistant_turns: 1 }, reply: [{ think: 8 }, call('cat greeting.txt'), call('pwd')] },
    { when: { last_role: 'tool' }, reply: [{ think: 8 }, { text: 'It is there.' }] },
  ],
};

let stack;
beforeAll(async () => {
  // Isolation is not what is tested here, and a sandbox would not see the SDKs.
  stack = await startTestStack({ scenarios: [SCENARIO], node: { default_backend: 'local' } });
});
afterAll(() => stack.close());

it('has a line for every agent', () => {
  expect(AGENTS).toEqual(Object.keys(DIALECTS));
});

describe.each(AGENTS)('%s', (name) => {
  it('is in the guide as it is run', async () => {
    const code = await readFile(join(HERE, 'agents', name), 'utf8');
    expect(guide).toContain(`\`\`\`js\n${code}\`\`\``);
  });

  it('has its conversation trained as it was sampled, in one trace', async () => {
    const [result] = await stack.run({
      instruction: 'Write a greeting.',
      agent: {
        harness: 'shell',
        dialect: DIALECTS[name],
        custom_shell: `'${process.execPath}' '${join(HERE, 'agents', name)}' && test "$(cat greeting.txt)" = hello`,
      },
      evaluator: { strategy: 'session_completed' },
      max_attempts: 1,
    });
    expect(result.error?.message ?? result.outcome).toBe('completed');
    expect(result).toMatchObject({ completion_count: 3, trace_count: 1, reward: 1 });
    expect(result.audit).toMatchObject({ exact_context_share: 1, links: { exact: 2 } });
    const report = checkAgainstLedger([result], stack.sim.ledger.entries(), 'processed');
    expect(report.mismatches).toEqual([]);
    expect(report.trainable_tokens).toBe(result.audit.tokens.sampled);
  });
});
