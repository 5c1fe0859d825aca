import { type AnyTool, defineTool, type Episode, mainConversation, pushInstruction, runLoop } from '@floe-rl/agents';
import { pickOne, type RandomSource, seededRandom } from '@floe-rl/core';
import type { AssistantMessage } from '@floe-rl/core/schema';
import { z } from 'zod';
import { finishTool } from '#agents/tools/built-in/finish';
import type { Finding } from '../runner/checks.ts';

/** Number of malformed replies of one episode, before the agent finishes it. */
const PER_EPISODE = 50;

const move = defineTool({
  name: 'move',
  description: 'moves',
  effect: 'environment',
  parameters: z.object({ direction: z.enum(['up', 'down']), steps: z.int().min(1).max(9) }),
  run: async () => 'moved',
});
const TOOLS: readonly AnyTool[] = [move, finishTool];

/** Kinds as which the loop counts what is wrong. */
type Kind = 'bad_json' | 'bad_arguments' | 'unknown_tool';
type Malformed = { readonly kind: Kind; readonly message: AssistantMessage };

/** Texts of calls that an engine leaves in the reply because it cannot parse them, as models of several families write them. */
const UNPARSED = [
  '<tool_call>\n{"name": "move", "arguments": {"direction": "up"\n</tool_call>',
  '<tool_call>\n<function=move>\n<parameter=direction>up\n</function>',
  '<function=move>{"direction": "up"',
  '[TOOL_CALLS][{"name": "move", "arguments": {',
  '<|python_tag|>move.call(direction=',
  '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>move',
];
const BAD_JSON = [
  '{',
  '{"direction": up}',
  "{'direction': 'up'}",
  '{"direction": "up",}',
  'up',
  '[]',
  'null',
  '7',
  '"up"',
];
const BAD_ARGUMENTS = [
  '{}',
  '',
  '{"direction": "left", "steps": 1}',
  '{"direction": "up", "steps": "1"}',
  '{"direction": "up", "steps": 1e99}',
  '{"direction": ["up"], "steps": 1}',
  '{"direction": null, "steps": null}',
  '{"__proto__": {"direction": "up", "steps": 1}}',
];
const UNKNOWN = ['', 'Move', 'move ', 'functions.move', '__proto__', 'constructor', 'x'.repeat(100_000), '\ud800'];

function malformedReply(random: RandomSource, index: number): Malformed {
  const call = (name: string, args: string): AssistantMessage => ({
    role: 'assistant',
    content: null,
    tool_calls: [{ id: `call_${index}`, type: 'function', function: { name, arguments: args } }],
  });
  switch (pickOne(random, ['unparsed', 'json', 'arguments', 'unknown'] as const)) {
    case 'unparsed':
      return { kind: 'bad_json', message: { role: 'assistant', content: pickOne(random, UNPARSED) } };
    case 'json':
      return { kind: 'bad_json', message: call('move', pickOne(random, BAD_JSON)) };
    case 'arguments':
      return { kind: 'bad_arguments', message: call('move', pickOne(random, BAD_ARGUMENTS)) };
    case 'unknown':
      return { kind: 'unknown_tool', message: call(pickOne(random, UNKNOWN), '{"direction": "up", "steps": 1}') };
  }
}

/** Sends `count` malformed calls to the loop, in every form in which models write calls. No episode may crash, and each must be counted. */
export async function runMalformedCalls(count: number): Promise<Finding[]> {
  const random = seededRandom(1);
  const expected = new Map<string, number>();
  const counted = new Map<string, number>();
  let crashed = 0;
  for (let sent = 0; sent < count; sent += PER_EPISODE) {
    const replies = Array.from({ length: PER_EPISODE }, (_, index) => malformedReply(random, index));
    for (const { kind } of replies) add(expected, `broken.${kind}`, 1);
    try {
      await runEpisode(
        replies.map(({ message }) => message),
        counted,
      );
    } catch (error) {
      crashed++;
      console.log(`an episode crashed: ${(error as Error).message}`);
    }
  }
  const kinds = [...expected].map(([kind, number]) => `${kind} ${counted.get(kind) ?? 0}/${number}`);
  return [
    {
      what: `${count} malformed calls`,
      isPassed: crashed === 0 && [...expected].every(([kind, number]) => counted.get(kind) === number),
      detail: `crashed episodes ${crashed}, counted ${kinds.join(', ')}`,
    },
  ];
}

async function runEpisode(replies: readonly AssistantMessage[], counted: Map<string, number>): Promise<void> {
  const finish: AssistantMessage = {
    role: 'assistant',
    content: null,
    tool_calls: [{ id: 'end', type: 'function', function: { name: 'finish', arguments: '{}' } }],
  };
  const all = [...replies, finish];
  const { signal } = new AbortController();
  let asked = 0;
  const usage = { prompt_tokens: 1, completion_tokens: 1, cached_tokens: null };
  const conversation = mainConversation(
    {
      ask: async () => ({ completionId: `c${asked}`, message: all[asked++] ?? finish, finishReason: 'stop', usage }),
    },
    signal,
  );
  const episode: Episode = {
    ...{ seed: 0, instruction: 'Move.', systemPrompt: null, metadata: {}, settings: {}, hints: true },
    ...{ box: null, environment: null, tools: TOOLS, toolInstructions: [], conversation, services: {}, signal },
    limits: { turns: null, contextTokens: null },
    left: () => ({ turns: null, contextTokens: null }),
    count: (name, value = 1) => add(counted, name, value),
    measure: () => {},
  };
  pushInstruction(episode);
  const { status } = await runLoop(episode, { answersInText: false, maxIdleReplies: Number.POSITIVE_INFINITY });
  if (status !== 'finished') throw new Error(`the episode ended as ${status}`);
}

function add(counts: Map<string, number>, name: string, value: number): void {
  counts.set(name, (counts.get(name) ?? 0) + value);
}
