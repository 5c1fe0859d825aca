import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { checkAgainstLedger, parseScenarios } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../tools/repository.ts';
import { startTestStack, type TestStack } from './stack.ts';

const PLUGINS = join(repositoryRoot(), 'packages', 'agents', 'test', 'host', 'plugins');
const LOG = join(mkdtempSync(join(tmpdir(), 'floe-kept-')), 'log');

const call = (tool: string, args: object = {}) => [{ call: { tool, arguments: args } }];
const turn = (assistant_turns: number, reply: object[]) => ({ when: { assistant_turns }, reply });

const scenarios = parseScenarios(
  {
    scenarios: [
      {
        name: 'count',
        match: { contains: 'Count twice' },
        rules: [
          turn(0, call('count')),
          turn(1, call('count')),
          { when: { last_tool_result: { contains: 'call 2' } }, reply: [{ text: 'twice' }] },
          { reply: [{ text: 'another number' }] },
        ],
      },
      {
        name: 'echo',
        match: { contains: 'Say it by the server' },
        rules: [
          turn(0, call('echo', { text: 'moin' })),
          { when: { last_tool_result: { contains: 'moin from the node' } }, reply: [{ text: 'moin' }] },
        ],
      },
      {
        name: 'die',
        match: { contains: 'Try the server' },
        rules: [
          turn(0, call('echo', { text: 'moin' })),
          turn(1, call('die')),
          { when: { last_tool_result: { contains: 'has ended during the call' } }, reply: call('echo', { text: 'x' }) },
          { when: { last_tool_result: { contains: 'test has ended' } }, reply: [{ text: 'it is dead' }] },
        ],
      },
      {
        name: 'delegate',
        match: { contains: 'the two sums' },
        rules: [
          {
            when: { system: { contains: 'part of a larger task' }, assistant_turns: 0 },
            reply: call('think', { thought: '1 + 2' }),
          },
          { when: { system: { contains: 'part of a larger task' } }, reply: [{ text: 'It is 3.' }] },
          turn(0, call('delegate', { task: 'Of the two sums: 1 + 2.' })),
          { when: { last_tool_result: { contains: 'It is 3.' } }, reply: [{ text: '3' }] },
        ],
      },
      {
        name: 'skills',
        match: { contains: 'Greet in the right way' },
        rules: [
          {
            when: { assistant_turns: 0, system: { contains: '- greeting: How to greet.' } },
            reply: call('read_skill', { skill: 'greeting' }),
          },
          {
            when: { last_tool_result: { contains: 'other files: words.txt' } },
            reply: call('read_skill', { skill: 'greeting', file: 'words.txt' }),
          },
          { when: { last_tool_result: { contains: 'moin' } }, reply: [{ text: 'moin' }] },
        ],
      },
    ],
  },
  'the test',
);

let stack: TestStack;
beforeAll(async () => {
  stack = await startTestStack({
    scenarios,
    server: { plugins: ['group_counter', 'node_counter'] },
    node: {
      default_backend: 'none',
      plugins: {
        tools: { group_counter: join(PLUGINS, 'kept-counter.js'), node_counter: join(PLUGINS, 'node-counter.js') },
        services: { kept_log: LOG },
        mcp_servers: [
          {
            ...{ name: 'test', transport: 'stdio', command: process.execPath },
            ...{ args: [join(PLUGINS, 'mcp-server.js')], env: { GREETING: 'from the node' } },
          },
        ],
        processes: 1,
      },
    },
  });
});
let isClosed = false;
afterAll(async () => {
  if (!isClosed) await stack.close();
});

type Tools = readonly (string | { readonly name: string; readonly config: object })[];

/** Runs a task whose agent must give an answer. */
async function resultsOf(
  instruction: string,
  expected: string,
  tools: Tools,
  more: Partial<TaskRequestInput> = {},
): Promise<SessionResult[]> {
  const results = await stack.run({
    instruction,
    max_attempts: 1,
    evaluator: { strategy: 'answer', config: { kind: 'exact', expected } },
    ...more,
    agent: { harness: 'floe', settings: { agent: 'tool_call', tools }, ...more.agent } as TaskRequestInput['agent'],
  });
  for (const result of results) expect(result).toMatchObject({ outcome: 'completed', reward: 1, error: null });
  return results;
}

const counting = (name: string, label: string, samples: number) =>
  resultsOf('Count twice.', 'twice', [{ name, config: { label } }], { num_samples: samples });

const events = (label: string): string[] =>
  readFileSync(LOG, 'utf8')
    .split('\n')
    .filter((line) => line.endsWith(` ${label}`))
    .map((line) => line.split(' ')[0] ?? '');

describe('the tools of an MCP server', () => {
  it('are called by an agent', async () => {
    const [result] = await resultsOf('Say it by the server.', 'moin', [{ name: 'mcp', config: { server: 'test' } }]);
    expect(result?.agent?.episode?.metrics).toMatchObject({ 'calls.echo': 1 });
  });

  it('are errors that the agent reads when the server dies, and other sessions have servers of their own', async () => {
    const tools = [{ name: 'mcp', config: { server: 'test' } }];
    const [[died]] = await Promise.all([
      resultsOf('Try the server.', 'it is dead', tools),
      resultsOf('Say it by the server.', 'moin', tools),
    ]);
    expect(died?.agent?.episode?.metrics).toMatchObject({ 'calls.echo': 2, 'calls.die': 1, 'hints.tool_failed': 2 });
  });
});

describe('the tool delegate', () => {
  it('gives a part of the task to a sub-agent, whose replies are a trace of their own', async () => {
    const tools = [{ name: 'delegate', config: { tools: [{ name: 'think' }] } }];
    const results = await resultsOf('Find the two sums.', '3', tools);
    expect(results[0]?.agent?.episode?.metrics).toMatchObject({ delegations: 1, 'delegate.calls.think': 1, turns: 2 });
    const threads = results[0]?.trajectory?.traces.map(({ metadata }) => metadata.thread);
    expect(threads).toEqual(['main', 'delegate-1']);
    expect(checkAgainstLedger(results, stack.sim.ledger.entries(), 'processed')).toMatchObject({ mismatches: [] });
  });
});

describe('the skills of a task', () => {
  it('are announced and read', async () => {
    const files = { 'SKILL.md': '---\ndescription: How to greet.\n---\nUse the words.', 'words.txt': 'moin' };
    const agent = { harness: 'floe', skills: [{ name: 'greeting', files }], settings: { agent: 'tool_call' } };
    const [result] = await resultsOf('Greet in the right way.', 'moin', [], { agent });
    expect(result?.agent?.episode?.metrics).toMatchObject({ 'calls.read_skill': 2 });
  });
});

describe('toolsets that are kept', () => {
  it('of a group are opened once for the samples of a task, and reset before each further one', async () => {
    await counting('group_counter', 'a', 3);
    await counting('group_counter', 'b', 1);
    expect(events('a')).toEqual(['open', 'reset', 'reset']);
    expect(events('b')).toEqual(['open']);
  });

  it('of a group are opened for each task, also with the same settings', async () => {
    await counting('group_counter', 'c', 1);
    await counting('group_counter', 'c', 1);
    expect(events('c')).toEqual(['open', 'open']);
  });

  it('of a node are opened once for all tasks, and all are closed with the node', async () => {
    await counting('node_counter', 'd', 2);
    await counting('node_counter', 'd', 1);
    expect(events('d')).toEqual(['open', 'reset', 'reset']);
    await stack.close();
    isClosed = true;
    expect(events('d').at(-1)).toBe('close');
    expect(events('a').at(-1)).toBe('close');
    expect(events('c').filter((event) => event === 'close')).toHaveLength(2);
  });
});
