import { FloeError } from '@floe-rl/core';
import type { CallRules } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { type CanonicalReply, type CanonicalRequest, plainContext } from '../../../src/dialects/dialect.ts';
import { openaiChat } from '../../../src/dialects/openai_chat/dialect.ts';
import { streamOf } from '../whole-stream.ts';

const parse = (over: object, headers = {}, rules: CallRules | null = null): CanonicalRequest =>
  openaiChat.parseRequest(
    { model: 'm', messages: [{ role: 'user', content: 'hi' }], ...over },
    plainContext(headers, rules),
  );

const messagesOf = (messages: object[]) => parse({ messages }).messages;
const text = (value: string) => ({ type: 'text', text: value });
const image = { type: 'image_url', image_url: { url: 'data:image/png;base64,AA', detail: 'high' } };
const imagePart = { type: 'image_url', image_url: { url: 'data:image/png;base64,AA' } };

describe('a chat request', () => {
  it('becomes canonical as a coding harness sends it and notes what was dropped', () => {
    const request = parse({
      messages: [
        { role: 'developer', content: 'You are an agent.' },
        { role: 'user', content: [text('do'), text('it')], name: 'u' },
      ],
      tools: [
        {
          type: 'function',
          function: {
            name: 'sh',
            description: 'Runs',
            parameters: { type: 'object', properties: { n: { type: ['integer', 'null'] } } },
            strict: false,
          },
        },
        { type: 'function', function: { name: 'bare' } },
        { type: 'web_search_preview' },
      ],
      tool_choice: 'auto',
      parallel_tool_calls: true,
      stream: true,
      stream_options: { include_usage: true },
      store: false,
      reasoning_effort: 'high',
      prompt_cache_key: 'session_1',
      max_tokens: 10,
      max_completion_tokens: 20,
      temperature: 0,
      top_p: 0.95,
      presence_penalty: 0.1,
      stop: 'END',
      seed: 4,
      n: 1,
    });
    expect(request).toEqual({
      model: 'm',
      messages: [
        { role: 'system', content: 'You are an agent.' },
        { role: 'user', content: 'do\nit' },
      ],
      tools: [
        {
          type: 'function',
          function: {
            name: 'sh',
            description: 'Runs',
            parameters: { type: 'object', properties: { n: { type: ['integer', 'null'] } } },
          },
        },
        { type: 'function', function: { name: 'bare' } },
      ],
      toolChoice: 'auto',
      parallelToolCalls: true,
      samplingAsked: { temperature: 0, top_p: 0.95, max_tokens: 20, stop: ['END'], seed: 4 },
      stream: true,
      streamUsage: true,
      toolForms: new Map(),
      previousCompletionId: null,
      adjusted: [
        'developer message sent as system',
        'reasoning_effort ignored',
        'presence_penalty ignored',
        'hosted tool web_search_preview dropped',
      ],
      thread: 'main',
      callKind: 'main',
    });
  });

  it.each([[null], [''], [undefined], [[]]])(
    'is the same for an assistant message of calls with content %j',
    (content) => {
      const tool_calls = [{ id: 'a', type: 'function', function: { name: 'f', arguments: '{ "x":1}' } }];
      expect(messagesOf([{ role: 'assistant', content, tool_calls, refusal: null, audio: null }])).toEqual([
        { role: 'assistant', content: null, tool_calls },
      ]);
    },
  );

  it('keeps the text of arguments, even when it is not JSON', () => {
    const tool_calls = [{ id: 'a', type: 'function', function: { name: 'f', arguments: '{"x":' } }];
    expect(messagesOf([{ role: 'assistant', content: 'x', tool_calls }])[0]).toMatchObject({ tool_calls });
  });

  it('accepts reasoning under both field names and keeps white space and think tags', () => {
    const [one, two] = messagesOf([
      { role: 'assistant', content: '<think>a</think>\n b ', reasoning_content: 'r' },
      { role: 'assistant', content: [text('a'), { type: 'refusal', refusal: 'no' }], reasoning: 'r' },
    ]);
    expect(one).toEqual({ role: 'assistant', content: '<think>a</think>\n b ', reasoning_content: 'r' });
    expect(two).toEqual({ role: 'assistant', content: 'a\nno', reasoning_content: 'r' });
  });

  it('accepts tool results as text, parts or nothing, and moves their images into a user message', () => {
    expect(
      messagesOf([
        { role: 'tool', tool_call_id: 'a', content: [text('one'), image] },
        { role: 'tool', tool_call_id: 'b', content: null },
        { role: 'user', content: 'next' },
      ]),
    ).toEqual([
      { role: 'tool', tool_call_id: 'a', content: 'one' },
      { role: 'tool', tool_call_id: 'b', content: '' },
      { role: 'user', content: [imagePart, text('next')] },
    ]);
  });

  it('keeps consecutive user messages and their images separate', () => {
    const users = [
      { role: 'user', content: 'a' },
      { role: 'user', content: [text('b'), image] },
      { role: 'user', content: 'c' },
    ];
    expect(messagesOf(users)).toEqual([
      { role: 'user', content: 'a' },
      { role: 'user', content: [text('b'), imagePart] },
      { role: 'user', content: 'c' },
    ]);
  });

  it('joins leading system messages and merges later ones into a user message', () => {
    expect(
      messagesOf([
        { role: 'system', content: 'a' },
        { role: 'developer', content: 'b' },
        { role: 'user', content: 'u' },
        { role: 'assistant', content: 'x' },
        { role: 'system', content: 'late' },
      ]),
    ).toEqual([
      { role: 'system', content: 'a\nb' },
      { role: 'user', content: 'u' },
      { role: 'assistant', content: 'x' },
      { role: 'user', content: 'late' },
    ]);
  });

  it('contains the forced tool, and the call kind and thread from the headers', () => {
    const choice = { type: 'function', function: { name: 'f' } };
    const tools = [{ type: 'function', function: { name: 'f' } }];
    expect(parse({ tool_choice: choice, tools }).toolChoice).toEqual(choice);
    const child = { 'x-session-id': 's2', 'x-parent-session-id': 's1' };
    expect(parse({}, child, 'opencode')).toMatchObject({ thread: 's2', callKind: 'subagent' });
    expect(parse({}, { 'x-session-id': 's1' }, 'opencode')).toMatchObject({ thread: 'main', callKind: 'main' });
    const copilot = { 'x-interaction-type': 'conversation-subagent' };
    expect(parse({}, copilot, 'copilot_cli')).toMatchObject({ callKind: 'subagent' });
    expect(parse({}, { ...child, ...copilot })).toMatchObject({ thread: 'main', callKind: 'main' });
    const response_format = {
      type: 'json_schema',
      json_schema: { schema: { properties: { title: { type: 'string' } } } },
    };
    expect(parse({ response_format }, {}, 'qwen_code')).toMatchObject({ callKind: 'title', adjusted: [] });
    expect(parse({ response_format })).toMatchObject({ callKind: 'main', adjusted: [] });
  });

  it.each<[object, string]>([
    [{ messages: [{ role: 'user', content: [{ type: 'video' }] }] }, 'messages.0.content.0.type'],
    [{ messages: [{ role: 'tool', content: 'x' }] }, 'messages.0.tool_call_id'],
    [
      { messages: [{ role: 'assistant', tool_calls: [{ id: 'a', function: { name: 'f', arguments: {} } }] }] },
      'messages.0.tool_calls.0.function.arguments',
    ],
    [{ model: 5 }, 'model'],
    [{ max_tokens: 0 }, 'max_tokens'],
    [{ n: 2 }, 'n: only one choice'],
    [{ stop: [1] }, 'stop'],
  ])('is refused with the path of a field with a wrong type: %j', (over, path) => {
    expect(() => parse(over)).toThrow(path);
  });
});

const reply = (over: Partial<CanonicalReply> = {}): CanonicalReply => ({
  completionId: 'cpl_1',
  model: 'asked',
  promptTokens: 10,
  createdMs: 1_500,
  message: {
    role: 'assistant',
    content: ' Text\u2028',
    reasoning_content: 'Think',
    tool_calls: [
      { id: 'c1', type: 'function', function: { name: 'f', arguments: '{"b": 1' } },
      { id: 'c2', type: 'function', function: { name: 'g', arguments: '' } },
    ],
  },
  finishReason: 'tool_calls',
  stopText: null,
  usage: { prompt_tokens: 10, completion_tokens: 4, cached_tokens: 6 },
  ...over,
});

const chunksOf = (stream: string): string[] =>
  stream
    .split('\n\n')
    .filter((line) => line !== '')
    .map((line) => line.replace(/^data: /, ''));

describe('a reply', () => {
  it('contains the message with the arguments as sampled', () => {
    expect(JSON.parse(openaiChat.encodeReply(reply(), parse({})))).toEqual({
      id: 'cpl_1',
      object: 'chat.completion',
      created: 1,
      model: 'asked',
      choices: [{ index: 0, message: reply().message, logprobs: null, finish_reason: 'tool_calls' }],
      usage: { prompt_tokens: 10, completion_tokens: 4, total_tokens: 14, prompt_tokens_details: { cached_tokens: 6 } },
    });
  });

  it('streams role, thinking, text and calls, and holds back the end of the first call', () => {
    const { body, end } = streamOf(openaiChat, reply(), parse({ stream_options: { include_usage: true } }));
    const deltas = chunksOf(body).map((chunk) => JSON.parse(chunk).choices[0]);
    expect(deltas.map(({ delta }) => delta)).toEqual([
      { role: 'assistant', content: '' },
      { reasoning_content: 'Think' },
      { content: ' Text\u2028' },
      { tool_calls: [{ index: 0, id: 'c1', type: 'function', function: { name: 'f', arguments: '' } }] },
      { tool_calls: [{ index: 0, function: { arguments: '{"b": 1' } }] },
    ]);
    expect(deltas.every(({ finish_reason }) => finish_reason === null)).toBe(true);
    const [second, finish, usage, done, ...rest] = chunksOf(end);
    expect(JSON.parse(second ?? '').choices[0].delta).toEqual({
      tool_calls: [{ index: 1, id: 'c2', type: 'function', function: { name: 'g', arguments: '' } }],
    });
    expect(JSON.parse(finish ?? '').choices).toEqual([
      { index: 0, delta: {}, logprobs: null, finish_reason: 'tool_calls' },
    ]);
    expect(JSON.parse(usage ?? '')).toMatchObject({ choices: [], usage: { total_tokens: 14 } });
    expect(done).toBe('[DONE]');
    expect(rest).toEqual([]);
  });

  it('contains a usage chunk only when the client requested it', () => {
    const text = reply({ message: { role: 'assistant', content: 'x' } });
    expect(chunksOf(streamOf(openaiChat, text, parse({})).end)).toHaveLength(2);
  });

  it.each([
    ['stop', 'stop'],
    ['length', 'length'],
  ] as const)('translates the finish reason %s to %s, and omits an unknown cache count', (finishReason, expected) => {
    const usage = { prompt_tokens: 1, completion_tokens: 1, cached_tokens: null };
    const body = JSON.parse(
      openaiChat.encodeReply(reply({ message: { role: 'assistant', content: 'x' }, finishReason, usage }), parse({})),
    );
    expect(body.choices[0].finish_reason).toBe(expected);
    expect(body.usage).toEqual({ prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 });
  });

  it('is translated back to the same canonical message', () => {
    const { message } = JSON.parse(openaiChat.encodeReply(reply(), parse({}))).choices[0];
    expect(messagesOf([message])).toEqual([reply().message]);
  });
});

it('an error has a type, a message and a code', () => {
  const overflow = new FloeError('engine_rejected', 'maximum context length is 5', { context_overflow: true });
  expect(openaiChat.encodeError(overflow)).toEqual({
    status: 400,
    body: JSON.stringify({
      error: {
        message: 'maximum context length is 5',
        type: 'invalid_request_error',
        param: null,
        code: 'context_length_exceeded',
      },
    }),
  });
  const [event, done] = chunksOf(openaiChat.openStream(reply(), parse({})).fail(new FloeError('engine_error', 'why')));
  expect(JSON.parse(event ?? '').error).toEqual({
    message: 'why',
    type: 'server_error',
    param: null,
    code: 'engine_error',
  });
  expect(done).toBe('[DONE]');
});
