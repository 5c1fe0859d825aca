import type { AssistantMessage } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import type { Environment, StepResult } from '../../src/environments/environment.ts';
import { mainConversation } from '../../src/loop/conversation.ts';
import { type ToolsEpisode, withTools } from '../../src/loop/with-tools.ts';
import { type AnyTool, defineTool, ToolError } from '../../src/tools/tool.ts';
import { scriptedModel } from './scripted-model.ts';

const { signal } = new AbortController();
const EPISODE: ToolsEpisode = {
  ...{ hints: false, box: null, services: {}, signal, count: () => {}, measure: () => {} },
  conversation: mainConversation(scriptedModel([]), signal),
};

const double = defineTool({
  name: 'double',
  description: 'Doubles a number.',
  effect: 'none',
  parameters: z.object({ number: z.number() }),
  async run({ number }) {
    if (number > 100) throw new ToolError('failed', 'too large');
    return { content: String(2 * number), reward: 0.25 };
  },
});

/** An environment with a tool `move`, which keeps the actions that it gets. */
function world(more: Partial<StepResult> = {}): Environment & { readonly actions: AssistantMessage[] } {
  const actions: AssistantMessage[] = [];
  const move = { type: 'function' as const, function: { name: 'move', parameters: { type: 'object' } } };
  return {
    actions,
    reset: async () => ({ messages: [{ role: 'user', content: 'Begin.' }], tools: [move], stateHash: 'start' }),
    async step(action) {
      actions.push(action);
      const messages = (action.tool_calls ?? []).map(({ id }) => {
        return { role: 'tool' as const, tool_call_id: id, content: 'moved' };
      });
      return { messages, reward: 1, terminated: false, truncated: false, stateHash: 'moved', ...more };
    },
    close: async () => {},
  };
}

function calling(...calls: readonly (readonly [string, unknown])[]): AssistantMessage {
  const tool_calls = calls.map(([name, args], index) => {
    const text = typeof args === 'string' ? args : JSON.stringify(args);
    return { id: `${name}-${index}`, type: 'function' as const, function: { name, arguments: text } };
  });
  return { role: 'assistant', content: null, tool_calls };
}

describe('an environment with tools', () => {
  it('declares its own tools and the others', async () => {
    const observation = await withTools(world(), [double], EPISODE).reset(1);
    expect(observation?.tools?.map((tool) => tool.function.name)).toEqual(['move', 'double']);
  });

  it('answers calls of tools without a step, in the same state', async () => {
    const inner = world();
    const environment = withTools(inner, [double], EPISODE);
    await environment.reset(1);
    const step = await environment.step(
      calling(['double', { number: 4 }], ['double', { number: 400 }], ['double', '{']),
    );
    expect(inner.actions).toEqual([]);
    expect(step).toMatchObject({ reward: 0.25, terminated: false, stateHash: 'start' });
    expect(step.messages.map(({ content }) => content)).toEqual([
      '8',
      'Error: too large',
      expect.stringContaining('not valid JSON'),
    ]);
  });

  it('hints at calls of tools that are broken or fail, as far as the task wants it, and counts them', async () => {
    const counts: string[] = [];
    const episode: ToolsEpisode = {
      ...EPISODE,
      hints: { tool_failed: 'Smaller, please.', bad_arguments: false },
      count: (name) => void counts.push(name),
    };
    const environment = withTools(world(), [double], episode);
    await environment.reset(1);
    const step = await environment.step(
      calling(['double', '{'], ['double', { number: 'x' }], ['double', { number: 400 }]),
    );
    const last = step.messages.at(-1)?.content;
    expect(last).toMatch(
      /^Error: too large\n\n\[The arguments of a tool call must be one JSON object.*\]\n\[Smaller, please\.\]$/,
    );
    expect(counts).toEqual(expect.arrayContaining(['broken.bad_json', 'broken.bad_arguments', 'hints.tool_failed']));
    expect(counts).not.toContain('hints.bad_arguments');
  });

  it('gives the environment what is not a call of a tool, and adds the rewards', async () => {
    const inner = world();
    const environment = withTools(inner, [double], EPISODE);
    await environment.reset(1);
    const step = await environment.step(calling(['double', { number: 1 }], ['move', {}]));
    expect(inner.actions[0]?.tool_calls?.map((call) => call.function.name)).toEqual(['move']);
    expect(step).toMatchObject({ reward: 1.25, stateHash: 'moved' });
    expect(step.messages.map((message) => (message.role === 'tool' ? message.tool_call_id : ''))).toEqual([
      'double-0',
      'move-1',
    ]);
    await environment.step({ role: 'assistant', content: 'left' });
    expect(inner.actions[1]).toEqual({ role: 'assistant', content: 'left' });
  });

  it('answers the player who acted when another player is next', async () => {
    const environment = withTools(world({ seat: 'second' }), [double], EPISODE);
    await environment.reset(1);
    const step = await environment.step(calling(['double', { number: 1 }], ['move', {}]));
    expect(step.answers?.map(({ content }) => content)).toEqual(['2']);
    expect((await environment.step(calling(['double', { number: 1 }]))).seat).toBe('second');
  });

  it('refuses a tool of the same name, and one that changes the agent', async () => {
    const other: AnyTool = { ...double, name: 'move' };
    await expect(withTools(world(), [other], EPISODE).reset(1)).rejects.toMatchObject({ code: 'schema_violation' });
    const ofAgent = { ...double, effect: 'agent' } as AnyTool;
    expect(() => withTools(world(), [ofAgent], EPISODE)).toThrow(/double changes the agent/);
  });
});
