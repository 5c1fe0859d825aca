import type { AssistantMessage } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { never } from '../../../../sandbox/test/backends/workbench.ts';
import type { Environment } from '../../../src/environments/environment.ts';
import { findEnvironment, parseEnvironmentConfig } from '../../../src/environments/registry.ts';
import { mainConversation } from '../../../src/loop/conversation.ts';
import { type LoopEpisode, runLoop } from '../../../src/loop/loop.ts';
import { environmentToolset } from '../../../src/tools/built-in/environment.ts';
import { stepTool, stepTools } from '../../../src/tools/step-tool.ts';
import type { AnyTool } from '../../../src/tools/tool.ts';
import { scriptedModel } from '../../loop/scripted-model.ts';

function game(name: string, config: Record<string, unknown>): Environment {
  const definition = findEnvironment(name);
  return definition.create(parseEnvironmentConfig(definition, config), { signal: never });
}

/** Lets a model with these replies play with the tools. Resolves with the result and the metrics. */
async function play(tools: readonly AnyTool[], replies: readonly AssistantMessage[]) {
  const metrics: Record<string, number> = {};
  const conversation = mainConversation(scriptedModel(replies), never);
  const episode: LoopEpisode = {
    ...{ box: null, services: {}, conversation, signal: never, tools, hints: false },
    limits: { turns: null, contextTokens: null },
    left: () => ({ turns: null, contextTokens: null }),
    count: () => {},
    measure: (name, value) => {
      metrics[name] = value;
    },
  };
  return { result: await runLoop(episode, { answersInText: true }), metrics };
}

const call = (name: string, args: object): AssistantMessage => ({
  role: 'assistant',
  content: null,
  tool_calls: [{ id: 'a', type: 'function', function: { name, arguments: JSON.stringify(args) } }],
});

describe('the steps of an environment as tools', () => {
  it('win a game with the tools that it declares, whose score is the score of the episode', async () => {
    const definition = findEnvironment('frozen_lake');
    const perfect = definition.perfectPlay?.(parseEnvironmentConfig(definition, {}), 7);
    const environment = game('frozen_lake', {});
    const observation = await environment.reset(7);
    if (observation === null || perfect === undefined) throw new Error('no episode');
    const { result, metrics } = await play(stepTools(environment, observation), perfect.replies);
    expect(result).toMatchObject({
      status: 'finished',
      score: perfect.score,
      reason: 'the environment ended the episode',
    });
    expect(result.replyRewards).toHaveLength(perfect.replies.length);
    expect(metrics).toMatchObject({ 'env.success': 1 });
  });

  it('are one tool `step` where actions are texts', async () => {
    const environment = game('guess_number', { action_format: 'text', max_steps: 2 });
    await environment.reset(3);
    const wrong = call('step', { action: '<answer>nothing</answer>' });
    const { result } = await play([stepTool(environment)], [wrong, wrong]);
    expect(result).toMatchObject({ status: 'truncated', score: 0 });
  });

  it('score 0 when the agent answers without a step', async () => {
    const environment = game('frozen_lake', {});
    const observation = await environment.reset(7);
    const { result } = await play(stepTools(environment, observation ?? { messages: [] }), [
      { role: 'assistant', content: 'No.' },
    ]);
    expect(result).toMatchObject({ status: 'finished', score: 0 });
  });

  it('refuse an environment for several players', () => {
    const environment = game('frozen_lake', {});
    expect(() => stepTools(environment, { messages: [], seat: 'first' })).toThrow(/several players/);
  });
});

describe('the toolset environment', () => {
  const context = {
    ...{ box: null, seed: 7, metadata: {}, skills: [], services: {}, mcpServers: [] },
    openTools: () => Promise.reject(new Error('none')),
  };

  it('says the rules and declares the tools of the environment of the task', async () => {
    const environment = game('frozen_lake', {});
    const open = await environmentToolset.open({}, { ...context, environment }, never);
    expect(open.tools.map(({ name }) => name)).toEqual(['move']);
    expect(open.instructions).toMatch(/ice/);
  });

  it('is refused in a task without an environment, and for a seed without an episode', async () => {
    const nothing = environmentToolset.open({}, { ...context, environment: null }, never);
    await expect(nothing).rejects.toMatchObject({ code: 'schema_violation' });
    const empty = { reset: async () => null, step: () => Promise.reject(new Error('unused')), close: async () => {} };
    const none = environmentToolset.open({}, { ...context, environment: empty }, never);
    await expect(none).rejects.toThrow(/no episode for this seed/);
  });
});
