import type { AssistantMessage, ChatMessage } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { mainConversation } from '../../src/loop/conversation.ts';
import type { Episode } from '../../src/loop/episode.ts';
import type { HintSettings } from '../../src/loop/hints.ts';
import { type LoopOptions, pushInstruction, runLoop } from '../../src/loop/loop.ts';
import { finishTool } from '../../src/tools/built-in/finish.ts';
import { type AnyTool, defineTool, ToolError } from '../../src/tools/tool.ts';

type Call = readonly [name: string, args: unknown];

/** A reply with tool calls. Arguments that are a text are sent as they are. */
function calling(...calls: readonly Call[]): AssistantMessage {
  return {
    role: 'assistant',
    content: null,
    tool_calls: calls.map(([name, args], index) => ({
      id: `${name}-${index}`,
      type: 'function',
      function: { name, arguments: typeof args === 'string' ? args : JSON.stringify(args) },
    })),
  };
}

const saying = (content: string): AssistantMessage => ({ role: 'assistant', content });

type Setup = {
  replies: AssistantMessage[];
  tools?: AnyTool[];
  options?: Partial<LoopOptions>;
  hints?: HintSettings;
  turns?: number;
};

/** Runs the loop with a model that gives the replies in their order. Resolves with the result, the conversation and the metrics. */
async function loopOf({ replies, tools = [], options = {}, hints = false, turns }: Setup) {
  const metrics = new Map<string, number>();
  const rest = [...replies];
  const { signal } = new AbortController();
  let asked = 0;
  const conversation = mainConversation(
    {
      async ask() {
        const message = rest.shift();
        if (message === undefined) throw new Error('the model has no more replies');
        asked++;
        const usage = { prompt_tokens: 10, completion_tokens: 1, cached_tokens: null };
        return { completionId: `c${asked}`, message, finishReason: message.tool_calls ? 'tool_calls' : 'stop', usage };
      },
    },
    signal,
  );
  const episode: Episode = {
    ...{
      seed: 0,
      instruction: 'Do it.',
      systemPrompt: null,
      metadata: {},
      settings: {},
      hints,
      box: null,
      environment: null,
    },
    ...{
      tools,
      toolInstructions: [],
      conversation,
      services: {},
      signal,
      limits: { turns: turns ?? null, contextTokens: null },
    },
    left: () => ({ turns: turns === undefined ? null : turns - asked, contextTokens: null }),
    count: (name, value = 1) => void metrics.set(name, (metrics.get(name) ?? 0) + value),
    measure: (name, value) => void metrics.set(name, value),
  };
  pushInstruction(episode);
  const result = await runLoop(episode, { answersInText: true, ...options });
  const answers = conversation.messages.filter(({ role }) => role === 'tool').map(({ content }) => content);
  return { result, messages: conversation.messages, answers, metrics: Object.fromEntries(metrics) };
}

const order: string[] = [];

/** Returns a tool that records when it starts and when it ends. */
function noting<Effect extends 'none' | 'environment' | 'agent'>(name: string, effect: Effect): AnyTool {
  return defineTool({
    name,
    description: name,
    effect: effect as 'none',
    parameters: z.object({}),
    async run() {
      order.push(`${name} starts`);
      await new Promise((resolve) => setImmediate(resolve));
      order.push(`${name} ends`);
      return 'ok';
    },
  });
}

const double = defineTool({
  name: 'double',
  description: 'doubles a number',
  effect: 'none',
  parameters: z.object({ number: z.number() }),
  run: async ({ number }) => ({ content: String(2 * number), reward: number }),
});

describe('the loop of an agent', () => {
  it('ends with the text of a reply without a call as the answer, and the sum of the rewards as the score', async () => {
    const { result, answers } = await loopOf({
      replies: [calling(['double', { number: 4 }], ['double', { number: 1 }]), saying('8 and 2')],
      tools: [double],
    });
    expect(result).toMatchObject({
      status: 'finished',
      answer: '8 and 2',
      score: 5,
      replyRewards: [{ completionId: 'c1', reward: 5 }],
    });
    expect(answers).toEqual(['8', '2']);
  });

  it.each([
    ['bad_json', ['double', '{"number": '], /not valid JSON/],
    ['bad_json', ['double', '[1]'], /not a JSON object/],
    ['bad_arguments', ['double', { number: 'four' }], /number: .*expected number/],
    ['unknown_tool', ['triple', { number: 4 }], /there is no tool "triple"/],
  ] as const)('answers a call with %s and runs the others', async (kind, broken, message) => {
    const { answers, metrics } = await loopOf({
      replies: [calling(broken, ['double', { number: 3 }]), saying('done')],
      tools: [double],
    });
    expect(answers).toEqual([expect.stringMatching(message), '6']);
    expect(metrics[`broken.${kind}`]).toBe(1);
  });

  it('runs calls without effect in parallel, those on the environment in order, and one on the agent after them', async () => {
    order.length = 0;
    await loopOf({
      replies: [calling(['self', {}], ['world', {}], ['pure', {}], ['world', {}], ['pure', {}]), saying('done')],
      tools: [noting('pure', 'none'), noting('world', 'environment'), noting('self', 'agent')],
    });
    expect(order.filter((entry) => entry.startsWith('pure'))).toEqual([
      'pure starts',
      'pure starts',
      'pure ends',
      'pure ends',
    ]);
    expect(order.filter((entry) => entry.startsWith('world'))).toEqual([
      'world starts',
      'world ends',
      'world starts',
      'world ends',
    ]);
    expect(order.slice(-2)).toEqual(['self starts', 'self ends']);
  });

  it('shows the message of a tool error to the agent, and rejects with the name of a tool that has a defect', async () => {
    const failing = (error: Error): AnyTool =>
      defineTool({
        name: 'fail',
        description: '',
        effect: 'none',
        parameters: z.object({}),
        run: () => Promise.reject(error),
      });
    const replies = [calling(['fail', {}]), saying('done')];
    const { answers } = await loopOf({ replies, tools: [failing(new ToolError('failed', 'no luck'))] });
    expect(answers).toEqual(['Error: no luck']);
    await expect(loopOf({ replies, tools: [failing(new Error('a defect'))] })).rejects.toMatchObject({
      code: 'plugin_failed',
      message: 'tool fail: a defect',
    });
  });

  it.each([
    [
      'a cyclic object',
      (() => {
        const cycle: unknown[] = [];
        cycle.push(cycle);
        return cycle;
      })(),
    ],
    ['a number', 7],
    ['nothing', undefined],
    ['an invalid image', { content: [{ type: 'image_url', image_url: { url: 'data:image/png;base64,?' } }] }],
    ['an end that is a text', { content: 'x', end: 'done' }],
    ['an end without a reason', { content: 'x', end: { answer: 'a' } }],
    [
      'images of more than 32 MiB',
      { content: [{ type: 'image_url', image_url: { url: `data:image/png;base64,${'A'.repeat(2 ** 25)}` } }] },
    ],
  ])('rejects with the name of a tool that returns %s', async (_, returned) => {
    const tool = { ...noting('odd', 'none'), run: async () => returned } as unknown as AnyTool;
    await expect(loopOf({ replies: [calling(['odd', {}])], tools: [tool] })).rejects.toMatchObject({
      code: 'plugin_failed',
      details: { plugin: 'odd' },
    });
  });

  it('rejects with the name of a tool that throws what has no text', async () => {
    const textless = {
      toString: () => {
        throw new Error('no text');
      },
    };
    const tool = { ...noting('odd', 'none'), run: () => Promise.reject(textless) } as AnyTool;
    await expect(loopOf({ replies: [calling(['odd', {}])], tools: [tool] })).rejects.toMatchObject({
      code: 'plugin_failed',
      message: 'tool odd: something was thrown that has no text',
    });
  });

  it('leaves out the middle of a text of 100 MB', async () => {
    const tool = { ...noting('huge', 'none'), run: async () => 'x'.repeat(100_000_000) } as AnyTool;
    const { answers } = await loopOf({ replies: [calling(['huge', {}]), saying('done')], tools: [tool] });
    expect(String(answers[0]).length).toBeLessThan(33_000);
    expect(answers[0]).toContain('99967232 characters in the middle are left out');
  });

  it('fails after three replies in a row without a call, where an agent must call tools', async () => {
    const { result, metrics } = await loopOf({
      replies: [saying('a'), saying('<tool_call>{"name": double'), saying('c')],
      tools: [double],
      options: { answersInText: false },
    });
    expect(result).toMatchObject({ status: 'failed', score: null });
    expect(metrics).toMatchObject({ no_call: 2, 'broken.bad_json': 1 });
  });

  it('is truncated when its replies are used up', async () => {
    const call = calling(['double', { number: 1 }]);
    const { result } = await loopOf({ replies: [call, call], tools: [double], turns: 2 });
    expect(result).toMatchObject({ status: 'truncated', score: 2 });
  });
});

describe('hints', () => {
  const again = calling(['double', { number: 1 }]);
  const setup: Setup = { replies: [again, again, again, saying('done')], tools: [double] };

  it('are appended to the last answer, and counted', async () => {
    const { answers, metrics } = await loopOf({ ...setup, hints: true, turns: 4 });
    expect(answers[0]).toBe('2\n\n[You have 3 replies left.]');
    expect(answers[2]).toContain('You have made the same call 3 times.');
    expect(answers[2]).toContain('This is your last reply.');
    expect(metrics).toMatchObject({ 'hints.steps_left': 2, 'hints.repeated_call': 1, 'hints.last_step': 1 });
  });

  it('can be switched off and worded by kind', async () => {
    const { answers } = await loopOf({
      ...setup,
      turns: 4,
      hints: { steps_left: '{count} to go', repeated_call: false, last_step: false },
    });
    expect(answers).toEqual(['2\n\n[3 to go]', '2\n\n[2 to go]', '2']);
  });

  it('remind an agent once of a tool that it should have used', async () => {
    const { messages, result } = await loopOf({
      replies: [saying('too early'), saying('still')],
      tools: [double],
      hints: true,
      options: { requiredTool: 'double' },
    });
    const reminders = messages.filter((message: ChatMessage) => message.role === 'user').map(({ content }) => content);
    expect(reminders).toEqual(['Do it.', expect.stringContaining('You have not used double yet')]);
    expect(result.answer).toBe('still');
  });

  it('remind an agent once of such a tool when it calls finish, which then ends nothing', async () => {
    const early = await loopOf({
      replies: [calling(['finish', { answer: 'a' }]), calling(['finish', { answer: 'b' }])],
      tools: [double, finishTool as AnyTool],
      hints: true,
      options: { requiredTool: 'double', answersInText: false },
    });
    expect(early.answers).toEqual([expect.stringContaining('You have not used double yet'), 'Done.']);
    expect(early.result).toMatchObject({ status: 'finished', answer: 'b' });
    expect(early.metrics).toMatchObject({ 'hints.too_early': 1, 'calls.finish': 2 });
  });

  it.each([
    ['the tool was used', true, [calling(['double', { number: 1 }])], []],
    ['the tool is used in the same reply', true, [], [['double', { number: 1 }] as const]],
    ['the hint is switched off', false, [], []],
  ])('let finish end the work where %s', async (_, hints, before, beside) => {
    const { result, metrics } = await loopOf({
      replies: [...before, calling(...beside, ['finish', { answer: 'a' }])],
      tools: [double, finishTool as AnyTool],
      hints,
      options: { requiredTool: 'double', answersInText: false },
    });
    expect(result).toMatchObject({ status: 'finished', answer: 'a' });
    expect(metrics).not.toHaveProperty('hints.too_early');
  });
});

/** Malformed replies, by the kind under which the loop counts them. */
const MALFORMED: Readonly<Record<string, readonly AssistantMessage[]>> = {
  // Tool calls in the formats of several model families. The engine leaves them in the text because it cannot parse them.
  bad_json: [
    ...[
      '<tool_call>\n{"name": "move", "arguments": {"direction": "up"\n</tool_call>',
      '<tool_call>\n<function=move>\n<parameter=direction>up\n</function>',
      '<function=move>{"direction": "up"',
      '[TOOL_CALLS][{"name": "move", "arguments": {',
      '<|python_tag|>move.call(direction=',
      '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>move',
    ].map(saying),
    ...['{', '{"direction": up}', "{'direction': 'up'}", '{"direction": "up",}', 'up', '[]', 'null', '7', '"up"'].map(
      (args) => calling(['move', args]),
    ),
  ],
  bad_arguments: [
    ...['{}', '', '{"direction": "left", "steps": 1}', '{"direction": "up", "steps": "1"}'],
    ...[
      '{"direction": "up", "steps": 1e99}',
      '{"direction": ["up"], "steps": 1}',
      '{"direction": null, "steps": null}',
    ],
    '{"__proto__": {"direction": "up", "steps": 1}}',
  ].map((args) => calling(['move', args])),
  unknown_tool: [
    ...['', 'Move', 'move ', 'functions.move', '__proto__', 'constructor', 'x'.repeat(100_000), '\ud800'],
  ].map((name) => calling([name, { direction: 'up', steps: 1 }])),
};

describe('malformed calls', () => {
  const move = defineTool({
    name: 'move',
    description: 'moves',
    effect: 'environment',
    parameters: z.object({ direction: z.enum(['up', 'down']), steps: z.int().min(1).max(9) }),
    run: async () => 'moved',
  });

  it.each(Object.entries(MALFORMED))(
    'are all counted as broken.%s, and the episode continues',
    async (kind, replies) => {
      const { result, metrics } = await loopOf({
        replies: [...replies, calling(['finish', {}])],
        tools: [move as AnyTool, finishTool as AnyTool],
        hints: true,
        options: { answersInText: false, maxIdleReplies: Number.POSITIVE_INFINITY },
      });
      expect(result.status).toBe('finished');
      expect(metrics).toMatchObject({ [`broken.${kind}`]: replies.length });
      expect(Object.keys(metrics).filter((name) => name.startsWith('broken.'))).toEqual([`broken.${kind}`]);
    },
  );
});
