import { FloeError } from '@floe-rl/core';
import type { CallRules } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { anthropic } from '../../../src/dialects/anthropic/dialect.ts';
import { type CanonicalReply, type CanonicalRequest, plainContext } from '../../../src/dialects/dialect.ts';
import { streamOf } from '../whole-stream.ts';

const parse = (over: object, headers = {}, rules: CallRules | null = null): CanonicalRequest =>
  anthropic.parseRequest(
    { model: 'm', max_tokens: 100, messages: [{ role: 'user', content: 'hi' }], ...over },
    plainContext(headers, rules),
  );

/** Parses a token count request with these messages. Unlike a generation request, it may end with any kind of message. */
const counted = (messages: object[], over: object = {}) => anthropic.parseCount({ messages, ...over }, plainContext());
const messagesOf = (messages: object[], over: object = {}) => counted(messages, over).messages;

const png = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'AAAA' } };
const pngPart = { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } };
const text = (value: string, over = {}) => ({ type: 'text', text: value, ...over });

describe('a Messages request', () => {
  it('becomes canonical as Claude Code sends it and notes what was dropped', () => {
    const request = parse({
      system: [
        text('x-anthropic-billing-header: cc_version=2.1.329.ab1; cc_entrypoint=sdk-cli;'),
        text('You are an agent.', { cache_control: { type: 'ephemeral' } }),
        text('Be brief.'),
      ],
      messages: [{ role: 'user', content: [text('do it', { cache_control: { type: 'ephemeral' } })] }],
      tools: [
        {
          name: 'Bash',
          description: 'Runs a command',
          input_schema: { type: 'object', properties: { command: { type: 'string' } } },
          cache_control: { type: 'ephemeral' },
          eager_input_streaming: true,
        },
        { name: 'Nothing', input_schema: { type: 'object', properties: {} }, defer_loading: true },
        { type: 'web_search_20250305', name: 'web_search', max_uses: 5 },
      ],
      tool_choice: { type: 'auto', disable_parallel_tool_use: true },
      metadata: { user_id: '{"device_id":"d","session_id":"s"}' },
      thinking: { type: 'adaptive', display: 'omitted' },
      output_config: { effort: 'high' },
      context_management: { edits: [] },
      stop_sequences: ['END'],
      temperature: 0.5,
      top_p: 0.9,
      top_k: 3,
      stream: true,
    });
    expect(request).toEqual({
      model: 'm',
      messages: [
        { role: 'system', content: 'You are an agent.\nBe brief.' },
        { role: 'user', content: 'do it' },
      ],
      tools: [
        {
          type: 'function',
          function: {
            name: 'Bash',
            description: 'Runs a command',
            parameters: { type: 'object', properties: { command: { type: 'string' } } },
          },
        },
        { type: 'function', function: { name: 'Nothing', parameters: { type: 'object', properties: {} } } },
      ],
      toolChoice: 'auto',
      parallelToolCalls: false,
      samplingAsked: { temperature: 0.5, top_p: 0.9, top_k: 3, max_tokens: 100, stop: ['END'] },
      stream: true,
      streamUsage: true,
      toolForms: new Map(),
      previousCompletionId: null,
      claimedCompletions: new Map(),
      adjusted: [
        'billing header block removed',
        'thinking ignored',
        'context_management ignored',
        'output_config.effort ignored',
        'defer_loading ignored: the tool is sent in full',
        'hosted tool web_search_20250305 dropped',
      ],
      thread: 'main',
      callKind: 'main',
    });
  });

  it('is the same for a text as a string or one block, and for any position of the cache mark', () => {
    const plain = messagesOf([{ role: 'user', content: 'hi' }], { system: 'S' });
    const mark = { cache_control: { type: 'ephemeral' } };
    expect(messagesOf([{ role: 'user', content: [text('hi', mark)] }], { system: [text('S', mark)] })).toEqual(plain);
  });

  it('keeps thinking as reasoning and every call with its arguments', () => {
    const content = [
      { type: 'thinking', thinking: 'Hm. ', signature: 'anything' },
      { type: 'redacted_thinking', data: 'x' },
      text(' Let me look.'),
      { type: 'tool_use', id: 'a', name: 'Bash', input: { z: 1, a: 'é' } },
      { type: 'tool_use', id: 'b', name: 'Read', input: {} },
    ];
    expect(
      messagesOf([
        { role: 'user', content: 'x' },
        { role: 'assistant', content },
      ])[1],
    ).toEqual({
      role: 'assistant',
      content: ' Let me look.',
      reasoning_content: 'Hm. ',
      tool_calls: [
        { id: 'a', type: 'function', function: { name: 'Bash', arguments: '{"z":1,"a":"é"}' } },
        { id: 'b', type: 'function', function: { name: 'Read', arguments: '{}' } },
      ],
    });
  });

  it('has no content in an assistant message with only calls, and an empty text in an empty one', () => {
    const call = { type: 'tool_use', id: 'a', name: 'f', input: {} };
    expect(messagesOf([{ role: 'assistant', content: [call] }])[0]).toMatchObject({ content: null });
    expect(messagesOf([{ role: 'assistant', content: [] }])[0]).toEqual({ role: 'assistant', content: '' });
  });

  it.each<[string, object, object[]]>([
    ['a string', { content: 'out' }, [{ role: 'tool', tool_call_id: 'a', content: 'out' }]],
    ['nothing', {}, [{ role: 'tool', tool_call_id: 'a', content: '' }]],
    [
      'several texts',
      { content: [text('one'), text('two')] },
      [{ role: 'tool', tool_call_id: 'a', content: 'one\ntwo' }],
    ],
    [
      'an image',
      { content: [text('see'), png] },
      [
        { role: 'tool', tool_call_id: 'a', content: 'see' },
        { role: 'user', content: [pngPart] },
      ],
    ],
    [
      'references to tools',
      { content: [{ type: 'tool_reference', tool_name: 'Grep' }] },
      [{ role: 'tool', tool_call_id: 'a', content: 'Grep' }],
    ],
  ])('translates a tool result that is %s', (_, result, expected) => {
    const block = { type: 'tool_result', tool_use_id: 'a', ...result };
    expect(messagesOf([{ role: 'user', content: [block] }])).toEqual(expected);
  });

  it('keeps the order of tool results and moves text and images between them into one user message', () => {
    const request = parse({
      messages: [
        {
          role: 'user',
          content: [
            { type: 'tool_result', tool_use_id: 'a', content: [png], is_error: true },
            text('a note'),
            { type: 'tool_result', tool_use_id: 'b', content: 'two' },
            text('more'),
          ],
        },
      ],
    });
    expect(request.messages).toEqual([
      { role: 'tool', tool_call_id: 'a', content: '' },
      { role: 'tool', tool_call_id: 'b', content: 'two' },
      { role: 'user', content: [pngPart, text('a note\nmore')] },
    ]);
    expect(request.adjusted).toEqual([
      'is_error of a tool result dropped',
      'image of a tool result moved to a user message',
      'text before a tool result moved after it',
      'a tool result answers no call',
    ]);
  });

  it('keeps leading system messages and merges later ones into the adjacent user message', () => {
    const request = parse({
      system: 'S',
      messages: [
        { role: 'system', content: 'environment' },
        { role: 'user', content: 'hi' },
        { role: 'system', content: [text('skills')] },
        { role: 'assistant', content: 'yes' },
        { role: 'system', content: 'date' },
        { role: 'user', content: 'go on' },
      ],
    });
    expect(request.messages).toEqual([
      { role: 'system', content: 'S\nenvironment' },
      { role: 'user', content: 'hi\nskills' },
      { role: 'assistant', content: 'yes' },
      { role: 'user', content: 'date\ngo on' },
    ]);
  });

  it('keeps the canonical form of earlier messages when the conversation grows', () => {
    const turns = [
      { role: 'user', content: [text('a'), text('b')] },
      { role: 'system', content: 's' },
      { role: 'assistant', content: [{ type: 'tool_use', id: 'x', name: 'f', input: {} }] },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'x', content: [png] }, text('t')] },
      { role: 'system', content: 'late' },
      { role: 'assistant', content: 'done' },
      { role: 'system', content: 'again' },
      { role: 'user', content: 'more' },
    ];
    const whole = messagesOf(turns);
    for (const end of [2, 3, 5, 6]) {
      const part = messagesOf(turns.slice(0, end));
      expect(whole.slice(0, part.length)).toEqual(part);
    }
  });

  it.each([
    [{ type: 'any' }, 'required', null],
    [{ type: 'none' }, 'none', null],
    [
      { type: 'tool', name: 'f', disable_parallel_tool_use: false },
      { type: 'function', function: { name: 'f' } },
      true,
    ],
  ])('translates the tool choice %j', (choice, toolChoice, parallelToolCalls) => {
    const tools = [{ name: 'f', input_schema: {} }];
    expect(parse({ tool_choice: choice, tools })).toMatchObject({ toolChoice, parallelToolCalls });
  });

  it('is labelled by its schema and its header when it comes from Claude Code', () => {
    const schema = { type: 'object', properties: { title: { type: 'string' } } };
    const output_config = { format: { type: 'json_schema', schema } };
    const tools = [{ name: 'f', input_schema: {} }];
    const headers = { 'x-claude-code-agent-id': 'ab12' };
    const own = (over: object, sent = {}) => parse(over, sent, 'claude_code');
    expect(own({ output_config })).toMatchObject({ callKind: 'title', thread: 'main' });
    expect(own({ output_config, tools })).toMatchObject({ callKind: 'main' });
    expect(own({}, headers)).toMatchObject({ callKind: 'subagent', thread: 'ab12' });
    expect(parse({ output_config }, headers)).toMatchObject({ callKind: 'main', thread: 'main' });
  });

  it.each<[object, string]>([
    [{ messages: [] }, 'messages'],
    [{ messages: [{ role: 'user', content: [{ type: 'tool_result' }] }] }, 'messages.0.content.0.tool_use_id'],
    [
      {
        messages: [
          { role: 'user', content: 'x' },
          { role: 'assistant', content: [{ type: 'tool_use', id: 7, name: 'f', input: {} }] },
        ],
      },
      'messages.1.content.0.id',
    ],
    [{ messages: [{ role: 'user', content: [{ type: 'audio' }] }] }, 'messages.0.content.0.type'],
    [{ tools: [{ name: 5 }] }, 'tools.0.name'],
    [{ max_tokens: '5' }, 'max_tokens'],
    [{ tool_choice: { type: 'tool' } }, 'tool_choice.name'],
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
    content: 'Text é\n',
    reasoning_content: 'Think',
    tool_calls: [{ id: 'c1', type: 'function', function: { name: 'f', arguments: '{"b": 1,  "a":9007199254740993}' } }],
  },
  finishReason: 'tool_calls',
  stopText: null,
  usage: { prompt_tokens: 10, completion_tokens: 4, cached_tokens: 6 },
  ...over,
});

type Event = { type: string; index?: number; content_block?: object; delta?: object; usage?: object; message?: object };

function eventsOf(stream: string): Event[] {
  return stream
    .split('\n\n')
    .filter((block) => block !== '')
    .map((block) => {
      const match = /^event: (\w+)\ndata: (.*)$/.exec(block);
      const data = JSON.parse(match?.[2] ?? '') as Event;
      expect(data.type).toBe(match?.[1]);
      return data;
    });
}

describe('a reply', () => {
  it('contains thinking, text and calls in order, the arguments as sampled, and the usage', () => {
    const body = anthropic.encodeReply(reply(), parse({}));
    expect(body).toContain('"input":{"b": 1,  "a":9007199254740993}');
    expect(JSON.parse(body)).toMatchObject({
      id: 'cpl_1',
      type: 'message',
      role: 'assistant',
      model: 'asked',
      content: [
        { type: 'thinking', thinking: 'Think', signature: 'cpl_1' },
        { type: 'text', text: 'Text é\n' },
        { type: 'tool_use', id: 'c1', name: 'f' },
      ],
      stop_reason: 'tool_use',
      stop_sequence: null,
      usage: { input_tokens: 4, cache_read_input_tokens: 6, cache_creation_input_tokens: 0, output_tokens: 4 },
    });
  });

  it.each([
    ['{"a":', { __unparsedToolInput: { raw: '{"a":', len: 5 } }],
    ['[1]', { __unparsedToolInput: { raw: '[1]', len: 3 } }],
    ['', {}],
  ])('wraps the arguments %j, which are not a JSON object', (raw, input) => {
    const message = {
      role: 'assistant' as const,
      content: null,
      tool_calls: [{ id: 'c', type: 'function' as const, function: { name: 'f', arguments: raw } }],
    };
    expect(JSON.parse(anthropic.encodeReply(reply({ message }), parse({}))).content).toEqual([
      { type: 'tool_use', id: 'c', name: 'f', input },
    ]);
    const { body } = streamOf(anthropic, reply({ message }), parse({}));
    const pieces = eventsOf(body).map(({ delta }) => (delta as { partial_json?: string })?.partial_json ?? '');
    expect(pieces.join('')).toBe(raw);
  });

  it('closes calls in a stream only at the end, all of them in order', () => {
    const call = (id: string) => ({ id, type: 'function' as const, function: { name: 'f', arguments: '{}' } });
    const message = { role: 'assistant' as const, content: null, tool_calls: [call('a'), call('b')] };
    const { body, end } = streamOf(anthropic, reply({ message }), parse({ stream: true }));
    expect(eventsOf(body).map(({ type }) => type)).not.toContain('content_block_stop');
    const rest = eventsOf(end).map(({ type, index }) => (index === undefined ? type : `${type} ${index}`));
    expect(rest).toEqual([
      'content_block_stop 0',
      'content_block_start 1',
      'content_block_delta 1',
      'content_block_delta 1',
      'content_block_stop 1',
      'message_delta',
      'message_stop',
    ]);
  });

  it('streams events from which a client assembles the same message', () => {
    const { body, end } = streamOf(anthropic, reply(), parse({ stream: true }));
    const events = eventsOf(body);
    expect(events.map(({ type }) => type)).toEqual([
      'message_start',
      ...['content_block_start', 'content_block_delta', 'content_block_delta', 'content_block_stop'],
      ...['content_block_start', 'content_block_delta', 'content_block_stop'],
      ...['content_block_start', 'content_block_delta', 'content_block_delta'],
    ]);
    expect(events.map(({ index }) => index)).toEqual([undefined, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2]);
    expect(events.filter(({ delta }) => delta).map(({ delta }) => delta)).toEqual([
      { type: 'thinking_delta', thinking: 'Think' },
      { type: 'signature_delta', signature: 'cpl_1' },
      { type: 'text_delta', text: 'Text é\n' },
      { type: 'input_json_delta', partial_json: '' },
      { type: 'input_json_delta', partial_json: '{"b": 1,  "a":9007199254740993}' },
    ]);
    expect(eventsOf(end)).toEqual([
      // The event that closes the tool call is sent at the end, because some clients run a tool as soon as its block is closed.
      { type: 'content_block_stop', index: 2 },
      {
        type: 'message_delta',
        delta: { stop_reason: 'tool_use', stop_sequence: null },
        usage: { input_tokens: 4, cache_creation_input_tokens: 0, cache_read_input_tokens: 6, output_tokens: 4 },
      },
      { type: 'message_stop' },
    ]);
  });

  it.each([
    [{ finishReason: 'length' as const }, { stop_reason: 'max_tokens' }],
    [{ finishReason: 'stop' as const }, { stop_reason: 'end_turn' }],
    [
      { finishReason: 'stop' as const, stopText: 'END' },
      { stop_reason: 'stop_sequence', stop_sequence: 'END' },
    ],
  ])('states the stop reason for %j', (over, expected) => {
    const message = { role: 'assistant' as const, content: 'x' };
    expect(JSON.parse(anthropic.encodeReply(reply({ message, ...over }), parse({})))).toMatchObject(expected);
  });

  it('has no blocks when it is empty', () => {
    const message = { role: 'assistant' as const, content: '' };
    expect(JSON.parse(anthropic.encodeReply(reply({ message, finishReason: 'stop' }), parse({}))).content).toEqual([]);
  });

  it('is translated back to the same canonical message', () => {
    const plain = reply({
      message: {
        ...reply().message,
        tool_calls: [{ id: 'c1', type: 'function', function: { name: 'f', arguments: '{"a":1}' } }],
      },
    });
    const { content } = JSON.parse(anthropic.encodeReply(plain, parse({})));
    expect(messagesOf([{ role: 'assistant', content }])).toEqual([plain.message]);
  });
});

describe('an error', () => {
  it.each([
    ['schema_violation', 400, 'invalid_request_error'],
    ['unauthorized', 401, 'authentication_error'],
    ['not_found', 404, 'not_found_error'],
    ['session_closed', 410, 'invalid_request_error'],
    ['body_too_large', 413, 'request_too_large'],
    ['overloaded', 429, 'rate_limit_error'],
    ['engine_error', 502, 'api_error'],
    ['engine_unavailable', 503, 'overloaded_error'],
  ] as const)('%s has the status %d and the type %s', (code, status, type) => {
    const encoded = anthropic.encodeError(new FloeError(code, 'why'));
    expect(encoded.status).toBe(status);
    expect(JSON.parse(encoded.body)).toEqual({ type: 'error', error: { type, message: 'why' } });
  });

  it("has the words that clients expect for an overlong prompt, and the engine's message", () => {
    const error = new FloeError('engine_rejected', 'maximum context length is 5', { context_overflow: true });
    const message = 'prompt is too long: maximum context length is 5';
    expect(JSON.parse(anthropic.encodeError(error).body).error.message).toBe(message);
    expect(eventsOf(anthropic.openStream(reply(), parse({})).fail(error))).toEqual([
      { type: 'error', error: { type: 'invalid_request_error', message } },
    ]);
  });
});
