// Runs the example agents of docs/guides/use-an-sdk.md, each with the `shell` harness in a session of its own.

import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { DialectName, TaskRequestInput } from '@floe-rl/core/schema';
import { checkAgainstLedger, type ScenarioInput } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../tools/repository.ts';
import { runTask, type Stack, startStack } from '../matrix/stack.ts';
import { defined } from './floe.ts';
import { MODE_SIM } from './mode.ts';

const FOLDER = join(repositoryRoot(), 'verify', 'conformance', 'agents');
const guide = await readFile(join(repositoryRoot(), 'docs', 'guides', 'use-an-sdk.md'), 'utf8');

/** The API dialect that each example agent uses, by the agent's file name. */
const AGENTS: Readonly<Record<string, DialectName>> = {
  'anthropic.mjs': 'anthropic',
  'google-genai.mjs': 'gemini',
  'openai-agents.mjs': 'openai_responses',
  'openai-chat.mjs': 'openai_chat',
  'openai-responses.mjs': 'openai_responses',
  'vercel-ai.mjs': 'anthropic',
};

const call = (command: string) => ({ call: { tool: 'bash', arguments: { command } } });
const SCENARIO: ScenarioInput = {
  name: 'greeting',
  match: { contains: 'greeting' },
  rules: [
    { when: { assistant_turns: 0, tools: ['bash'] }, reply: [{ think: 8 }, call('echo hello > greeting.txt')] },
    { when: { assistant_turns: 1 }, reply: [{ think: 8 }, call('cat greeting.txt'), call('pwd')] },
    { when: { last_role: 'tool' }, reply: [{ think: 8 }, { text: 'It is there.' }] },
  ],
};

let stack: Stack;
beforeAll(async () => {
  // The agents run in the `local` runtime, because a sandbox would not contain the SDKs. Isolation is tested elsewhere.
  stack = await startStack({ sim: { ...MODE_SIM, scenarios: [SCENARIO] }, backend: 'local' });
});
afterAll(() => stack.close());

it('the table has the dialect of every agent of the guide', async () => {
  expect((await readdir(FOLDER)).sort()).toEqual(Object.keys(AGENTS));
});

describe.each(Object.entries(AGENTS))('%s', (name, dialect) => {
  it('is the program that the guide quotes', async () => {
    const code = await readFile(join(FOLDER, name), 'utf8');
    expect(guide).toContain(`\`\`\`js\n${code}\`\`\``);
  });

  it('returns its conversation as one trace, in the context in which it was sampled', async () => {
    const task: TaskRequestInput = {
      instruction: 'Write a greeting.',
      agent: {
        harness: 'shell',
        dialect,
        custom_shell: `'${process.execPath}' '${join(FOLDER, name)}' && test "$(cat greeting.txt)" = hello`,
      },
      evaluator: { strategy: 'session_completed' },
      max_attempts: 1,
    };
    const result = await runTask(stack, task, new AbortController().signal);
    expect(result.error?.message ?? result.outcome).toBe('completed');
    expect(result).toMatchObject({ completion_count: 3, trace_count: 1, reward: 1 });
    expect(result.audit).toMatchObject({ exact_context_share: 1, links: { exact: 2 } });
    const report = checkAgainstLedger([result], stack.sim.ledger.entries(), 'processed');
    expect(report.mismatches).toEqual([]);
    expect(report.trainable_tokens).toBe(defined(result.audit).tokens.sampled);
  });
});
