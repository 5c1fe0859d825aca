import { FloeError } from '@floe-rl/core';
import type { AssistantMessage, ChatMessage, ChatTool, Content, ContentPart } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { Environment, Observation, StepResult } from '../environments/environment.ts';
import { type AnyTool, defineTool, type ToolResult } from './tool.ts';

/**
 * Returns the steps of an environment that has been reset as tools: the tools that its first observation declares or, for actions in text, one
 * tool `step`. The reward of a call is the reward of its step, and the end of the environment ends the episode. Tools that later observations
 * declare are not offered. Throws `unsupported` for an environment of several players.
 */
export function stepTools(environment: Environment, { tools = [], seat }: Observation): AnyTool[] {
  if (seat !== undefined) throw new FloeError('unsupported', 'an environment for several players is no tool; use gym');
  if (tools.length === 0) return [stepTool(environment)];
  let calls = 0;
  return tools.map((tool) => declaredTool(environment, tool, () => `step-${++calls}`));
}

/**
 * Returns a tool `step` that takes one step in the environment, with the argument `action` as its text. The environment must have been reset
 * and must take text as its actions.
 */
export function stepTool(environment: Environment): AnyTool {
  return defineTool({
    name: 'step',
    description: 'Takes an action in the environment, and returns what happens.',
    effect: 'environment',
    parameters: z.object({ action: z.string() }),
    hasRewards: true,
    run: async ({ action }, { measure }) =>
      resultOf(await environment.step({ role: 'assistant', content: action }), measure),
  });
}

/** Returns a tool that the environment declares. Its arguments are checked before they become an action. */
function declaredTool(environment: Environment, { function: declared }: ChatTool, nextId: () => string): AnyTool {
  const { name, description = '', parameters = {} } = declared;
  return {
    name,
    description,
    effect: 'environment',
    parameters: { type: 'object', ...parameters },
    hasRewards: true,
    async run(args, { measure }) {
      const call = { id: nextId(), type: 'function' as const, function: { name, arguments: JSON.stringify(args) } };
      const action: AssistantMessage = { role: 'assistant', content: null, tool_calls: [call] };
      return resultOf(await environment.step(action), measure);
    },
  };
}

function resultOf(step: StepResult, measure: (name: string, value: number) => void): ToolResult {
  for (const [name, value] of Object.entries(step.metrics ?? {})) measure(`env.${name}`, value);
  const content = contentOf(step.messages);
  if (!step.terminated && !step.truncated) return { content, reward: step.reward };
  const reason = step.terminated ? 'the environment ended the episode' : 'the environment stopped the episode';
  return { content, reward: step.reward, end: { reason, isTruncated: !step.terminated } };
}

/** Returns the contents of messages as one: a text where none has images. */
export function contentOf(messages: readonly ChatMessage[]): Content {
  const contents = messages.map(({ content }) => content ?? '');
  const texts = contents.filter((content) => typeof content === 'string');
  if (texts.length === contents.length) return texts.filter((text) => text !== '').join('\n');
  return contents.flatMap((content): ContentPart[] =>
    typeof content === 'string' ? [{ type: 'text', text: content }] : content,
  );
}
