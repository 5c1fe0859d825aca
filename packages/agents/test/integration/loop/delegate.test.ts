import type { AssistantMessage, ToolSpec } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { never } from '../../../../sandbox/test/backends/workbench.ts';
import { mainConversation } from '../../../src/loop/conversation.ts';
import { delegateToolset } from '../../../src/loop/delegate.ts';
import { type LoopEpisode, runLoop } from '../../../src/loop/loop.ts';
import { thinkTool } from '../../../src/tools/built-in/think.ts';
import { openToolset } from '../../../src/tools/toolset.ts';
import { scriptedModel } from '../../loop/scripted-model.ts';

const say = (content: string): AssistantMessage => ({ role: 'assistant', content });
const call = (name: string, args: object): AssistantMessage => ({
  role: 'assistant',
  content: null,
  tool_calls: [{ id: 'a', type: 'function', function: { name, arguments: JSON.stringify(args) } }],
});

/** Runs an agent that can delegate. Resolves with the requests of all conversations, the result and the metrics. */
async function run(replies: readonly AssistantMessage[], config: object = {}) {
  const asked: ToolSpec[][] = [];
  const context = {
    ...{ box: null, environment: null, seed: 0, metadata: {}, skills: [], services: {}, mcpServers: [] },
    openTools: async (specs: readonly ToolSpec[]) => {
      asked.push([...specs]);
      return [thinkTool];
    },
  };
  const { tools } = await openToolset(delegateToolset, config, context, never);
  const model = scriptedModel(replies);
  const conversation = mainConversation(model, never);
  conversation.push({ role: 'user', content: 'Two parts.' });
  const metrics: Record<string, number> = {};
  const episode: LoopEpisode = {
    ...{ box: null, services: {}, conversation, signal: never, tools, hints: false },
    limits: { turns: null, contextTokens: null },
    left: () => ({ turns: null, contextTokens: null }),
    count: (name, value = 1) => {
      metrics[name] = (metrics[name] ?? 0) + value;
    },
    measure: () => {},
  };
  const result = await runLoop(episode, { answersInText: true });
  const answers = conversation.messages.filter(({ role }) => role === 'tool').map(({ content }) => content);
  return { asked, requests: model.requests, result, metrics, answers };
}

describe('delegate', () => {
  it('lets sub-agents work in threads of their own, with their own tools and prompt', async () => {
    const { asked, requests, result, metrics, answers } = await run(
      [
        call('delegate', { task: 'Part one.' }),
        call('think', { thought: 'hm' }),
        say('One is done.'),
        call('delegate', { task: 'Part two.' }),
        say('Two is done.'),
        say('Both are done.'),
      ],
      { tools: ['think', { name: 'bash', config: { timeout_seconds: 5 } }], prompt: 'Be quick.', train: false },
    );
    expect(asked).toEqual([
      [
        { name: 'think', config: {} },
        { name: 'bash', config: { timeout_seconds: 5 } },
      ],
    ]);
    expect(requests.map(({ thread, isTrained }) => [thread, isTrained])).toEqual([
      ['main', true],
      ['delegate-1', false],
      ['delegate-1', false],
      ['main', true],
      ['delegate-2', false],
      ['main', true],
    ]);
    expect(requests[1]?.messages).toEqual([
      { role: 'system', content: 'Be quick.' },
      { role: 'user', content: 'Part one.' },
    ]);
    expect(requests[1]?.tools.map((tool) => tool.function.name)).toEqual(['think']);
    expect(answers).toEqual(['One is done.', 'Two is done.']);
    expect(result).toMatchObject({ status: 'finished', answer: 'Both are done.' });
    expect(metrics).toMatchObject({ delegations: 2, 'delegate.calls.think': 1 });
  });

  it('ends a sub-agent at its limit of replies', async () => {
    const think = call('think', { thought: 'hm' });
    const { answers } = await run([call('delegate', { task: 'x' }), think, think, say('Well.')], { max_turns: 2 });
    expect(answers).toEqual(['[the agent ended without an answer: no replies left]']);
  });

  it('refuses more sub-agents than the task allows, and an empty task', async () => {
    const { answers, metrics } = await run(
      [
        call('delegate', { task: 'x' }),
        say('Done.'),
        call('delegate', { task: 'y' }),
        call('delegate', { task: '' }),
        say('Well.'),
      ],
      { max_delegations: 1 },
    );
    expect(answers[1]).toMatch(/no more than 1 parts/);
    expect(metrics).toMatchObject({ delegations: 1, 'broken.bad_arguments': 1 });
  });
});
