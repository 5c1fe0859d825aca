import { toolSpecSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { Conversation } from '../tools/conversation.ts';
import { type AnyTool, defineTool, type ToolContexts, ToolError, type ToolResult } from '../tools/tool.ts';
import { defineToolset } from '../tools/toolset.ts';
import { MAIN_THREAD } from './conversation.ts';
import type { EpisodeResult } from './episode.ts';
import { hintSettingsSchema } from './hints.ts';
import { type LoopEpisode, runLoop } from './loop.ts';

const configSchema = z.strictObject({
  tools: z.array(toolSpecSchema).default([]).describe('tools of the sub-agents, opened once for all of them'),
  max_turns: z.int().min(1).max(1_000).default(20).describe('maximum number of replies of a sub-agent'),
  max_delegations: z.int().min(1).max(1_000).default(16).describe('maximum number of sub-agents of a session'),
  prompt: z.string().min(1).nullable().optional().describe('system prompt of the sub-agents; null for none'),
  train: z.boolean().default(true).describe('whether the replies of sub-agents are trained'),
  hints: hintSettingsSchema.default(true).describe('hints of the sub-agents, as in agent.settings.hints'),
  timeout_seconds: z.number().gt(0).max(86_400).default(1_800).describe('time limit of a sub-agent'),
});
type Config = z.output<typeof configSchema>;

const PROMPT = [
  'You work on a part of a larger task for another agent, which sees only your last reply.',
  'Do just what it requests. Reply without a tool call when you are done: the result first, then how you know that it is right.',
].join('\n');

/** Lets the agent give a part of its task to a sub-agent, which has a conversation of its own. */
export const delegateToolset = defineToolset({
  name: 'delegate',
  description: 'sub-agents with their own tools and conversations, whose replies become traces of their own',
  config: configSchema,
  scope: 'session',
  async open(config, { openTools }) {
    const tools = await openTools(config.tools);
    let delegations = 0;
    const tool = defineTool({
      name: 'delegate',
      description:
        'Gives a part of the task to another agent, and returns its answer. It knows only what you write here.',
      effect: 'agent',
      timeoutMs: config.timeout_seconds * 1000,
      parameters: z.object({ task: z.string().min(1).describe('what to do, with everything that is needed to do it') }),
      hasRewards: tools.some(({ hasRewards }) => hasRewards === true),
      async run({ task }, context, signal) {
        if (delegations >= config.max_delegations) {
          throw new ToolError(
            'failed',
            `no more than ${config.max_delegations} parts of a task can be given to others`,
          );
        }
        delegations++;
        context.count('delegations');
        return resultOf(await work(task, { number: delegations, config, tools }, context, signal));
      },
    });
    return { tools: [tool] };
  },
});

type SubAgent = { readonly number: number; readonly config: Config; readonly tools: readonly AnyTool[] };

/** Lets a sub-agent work on a task until it answers or has no replies left. */
async function work(
  task: string,
  { number, config, tools }: SubAgent,
  { box, services, conversation, count, measure }: ToolContexts['agent'],
  signal: AbortSignal,
): Promise<EpisodeResult> {
  const parent = conversation.thread === MAIN_THREAD ? '' : `${conversation.thread}.`;
  let turns = 0;
  const forked = conversation.fork(`${parent}delegate-${number}`, { messages: [], train: config.train });
  const prompt = config.prompt === undefined ? PROMPT : config.prompt;
  if (prompt !== null) forked.push({ role: 'system', content: prompt });
  forked.push({ role: 'user', content: task });
  const episode: LoopEpisode = {
    ...{ box, services, tools, signal, hints: config.hints },
    conversation: counting(forked, () => turns++),
    limits: { turns: config.max_turns, contextTokens: null },
    left: () => ({ turns: Math.max(0, config.max_turns - turns), contextTokens: null }),
    count: (metric, value) => count(`delegate.${metric}`, value),
    measure: (metric, value) => measure(`delegate.${metric}`, value),
  };
  return runLoop(episode, { answersInText: true });
}

/** Returns a conversation that calls `onTurn` after each reply. */
function counting(conversation: Conversation, onTurn: () => void): Conversation {
  return {
    thread: conversation.thread,
    get messages() {
      return conversation.messages;
    },
    async ask(options) {
      const turn = await conversation.ask(options);
      onTurn();
      return turn;
    },
    push: (...messages) => conversation.push(...messages),
    replace: (messages) => conversation.replace(messages),
    fork: (thread, options) => conversation.fork(thread, options),
  };
}

function resultOf({ status, answer = '', score, reason }: EpisodeResult): ToolResult {
  const reward = score === null ? {} : { reward: score };
  if (status === 'finished') return { content: answer === '' ? '[the agent gave no answer]' : answer, ...reward };
  return { content: `[the agent ended without an answer: ${reason}]`, isError: true, ...reward };
}
