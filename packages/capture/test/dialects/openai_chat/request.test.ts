import { describe, expect, it } from 'vitest';
import { type CanonicalReply, type CanonicalRequest, plainContext } from '../../../src/dialects/dialect.ts';
import { openaiChat } from '../../../src/dialects/openai_chat/dialect.ts';
import { streamOf } from '../whole-stream.ts';

const text = (value: string) => ({ type: 'text', text: value });
const user = { role: 'user', content: 'hi' };

const parse = (over: object): CanonicalRequest =>
  openaiChat.parseRequest({ model: 'm', messages: [user], ...over }, plainContext());

describe('the content of a message', () => {
  const image = { type: 'image_url', image_url: { url: 'data:image/png;base64,AA' } };

  it.each<[string, object, object]>([
    ['a string', { role: 'system', content: 'a' }, { role: 'system', content: 'a' }],
    ['parts', { role: 'developer', content: [text('a'), text('b')] }, { role: 'system', content: 'a\nb' }],
    ['null', { role: 'user', content: null }, { role: 'user', content: '' }],
    ['nothing', { role: 'user' }, { role: 'user', content: '' }],
    ['one part', { role: 'user', content: [text('a')] }, { role: 'user', content: 'a' }],
    ['an image alone', { role: 'user', content: [image] }, { role: 'user', content: [image] }],
    ['a refusal', { role: 'assistant', content: null, refusal: 'No.' }, { role: 'assistant', content: 'No.' }],
    ['no refusal', { role: 'assistant', content: 'a', refusal: null }, { role: 'assistant', content: 'a' }],
    ['an empty text', { role: 'assistant', content: '' }, { role: 'assistant', content: '' }],
    [
      'reasoning and nothing else',
      { role: 'assistant', content: null, reasoning_content: 'r', reasoning: 'r' },
      { role: 'assistant', content: '', reasoning_content: 'r' },
    ],
  ])('is translated from %s', (_, message, expected) => {
    expect(parse({ messages: [message] }).messages).toEqual([expected]);
  });

  it('is dropped and noted by type when the policy cannot read it', () => {
    const content = [text('hear'), { type: 'input_audio', input_audio: {} }, { type: 'file', file: {} }];
    expect(parse({ messages: [{ role: 'user', content }] })).toMatchObject({
      messages: [{ role: 'user', content: 'hear' }],
      adjusted: ['input_audio part dropped', 'file part dropped'],
    });
  });

  it('loses an image in a message that may contain only text', () => {
    expect(parse({ messages: [{ role: 'system', content: [text('a'), image] }] })).toMatchObject({
      messages: [{ role: 'system', content: 'a' }],
      adjusted: ['image outside a user message dropped'],
    });
  });

  it('is kept and noted for tool results without a call and for repeated call ids', () => {
    const call = { id: 'a', type: 'function', function: { name: 'f', arguments: '{}' } };
    const messages = [
      { role: 'assistant', tool_calls: [call, call] },
      { role: 'tool', tool_call_id: 'z', content: 'x' },
    ];
    expect(parse({ messages }).adjusted).toEqual(['a tool call id occurs twice', 'a tool result answers no call']);
  });

  it.each<[object, string]>([
    [{ role: 'user', content: 5 }, 'messages.0.content'],
    [{ role: 'user', content: [text('a'), { type: 'text' }] }, 'messages.0.content.1.text'],
    [{ role: 'assistant', tool_calls: [{ id: 'a', type: 'function' }] }, 'messages.0.tool_calls.0.function'],
    [{ role: 'assistant', tool_calls: [{ id: 'a', type: 'custom' }] }, 'messages.0.tool_calls.0.custom'],
    [{ role: 'function', name: 'f', content: 'x' }, 'messages.0.role: results of legacy functions'],
    [{ role: 'assistant', content: null, function_call: { name: 'f', arguments: '' } }, 'messages.0.function_call'],
    [{ role: 'critic', content: 'x' }, 'messages.0.role'],
  ])('is refused with the path when it has another type: %j', (message, path) => {
    expect(() => parse({ messages: [message] })).toThrow(path);
  });
});

describe('the settings of a request', () => {
  it.each<[object, string[]]>([
    [{ store: true, prompt_cache_key: 'k', user: 'u', metadata: {}, service_tier: 'auto', safety_identifier: 'x' }, []],
    [{ logprobs: false, top_logprobs: 0, presence_penalty: 0, frequency_penalty: 0, reasoning_effort: null }, []],
    [{ logprobs: true, top_logprobs: 3 }, ['logprobs ignored', 'top_logprobs ignored']],
    [{ reasoning_effort: 'low', verbosity: 'high' }, ['reasoning_effort ignored', 'verbosity ignored']],
    [
      { functions: [], function_call: null, n: 1, tools: null, stop: null, stop_sequences: ['x'] },
      ['stop_sequences ignored'],
    ],
  ])('note what is ignored: %j', (over, adjusted) => {
    expect(parse(over).adjusted).toEqual(adjusted);
  });

  it.each<[object, object]>([
    [{ max_tokens: 5 }, { max_tokens: 5 }],
    [{ max_completion_tokens: 6 }, { max_tokens: 6 }],
    [{ max_tokens: 5, max_completion_tokens: 6 }, { max_tokens: 6 }],
    [
      { temperature: 0, top_p: 0.95 },
      { temperature: 0, top_p: 0.95 },
    ],
    [{ stop: [] }, {}],
    [{ stop: ['a', 'b'] }, { stop: ['a', 'b'] }],
    [{ response_format: { type: 'text' } }, {}],
    [{ response_format: { type: 'json_object' } }, { response_format: { type: 'json_object' } }],
  ])('translate %j to %j', (over, asked) => {
    expect(parse(over).samplingAsked).toEqual(asked);
  });

  it('request a schema with or without a name', () => {
    const schema = { type: 'object' };
    const formatOf = (json_schema: object) =>
      parse({ response_format: { type: 'json_schema', json_schema } }).samplingAsked.response_format;
    expect(formatOf({ name: 'n', schema, strict: true, description: 'd' })).toEqual({
      type: 'json_schema',
      json_schema: { name: 'n', schema, strict: true },
    });
    expect(formatOf({ schema, strict: null })).toEqual({
      type: 'json_schema',
      json_schema: { name: 'response', schema },
    });
    expect(formatOf({ name: 'n' })).toBeUndefined();
    expect(parse({ response_format: { type: 'grammar' } })).toMatchObject({
      samplingAsked: {},
      adjusted: ['response_format grammar without a schema ignored'],
    });
  });

  it.each<[object, string]>([
    [{ n: 2 }, 'n: '],
    [{ functions: [{ name: 'f' }] }, 'functions: '],
    [{ function_call: 'auto' }, 'function_call: '],
    [{ continue_final_message: true }, 'continue_final_message: '],
    [{ add_generation_prompt: false }, 'add_generation_prompt: '],
    [{ response_format: { type: 'json_schema', json_schema: { schema: 'x' } } }, 'response_format.json_schema.schema'],
  ])('are refused by name when floe does not support them: %j', (over, words) => {
    expect(() => parse(over)).toThrow(words);
  });
});

const patch = {
  type: 'custom',
  custom: {
    name: 'apply_patch',
    description: 'Edits files',
    format: { type: 'grammar', grammar: { syntax: 'lark', definition: 'start: "x"' } },
  },
};

describe('the tools of a request', () => {
  it.each<[object, object]>([
    [{ name: 'f', strict: false, parameters: null, description: '' }, { name: 'f' }],
    [
      { name: 'f', parameters: { type: 'object', properties: { n: { type: ['integer', 'null'] } } } },
      { name: 'f', parameters: { type: 'object', properties: { n: { type: ['integer', 'null'] } } } },
    ],
  ])('are translated from %j', (declared, expected) => {
    expect(parse({ tools: [{ type: 'function', function: declared }] })).toMatchObject({
      tools: [{ type: 'function', function: expected }],
      adjusted: [],
    });
  });

  it('become functions with one text argument and the grammar in the description when they are custom', () => {
    const request = parse({ tools: [patch, { type: 'custom', custom: { name: 'free' } }] });
    expect(request.tools.map((tool) => tool.function)).toEqual([
      {
        name: 'apply_patch',
        description: 'Edits files\n\nThe input follows this lark grammar:\nstart: "x"',
        parameters: { type: 'object', properties: { input: { type: 'string' } }, required: ['input'] },
      },
      {
        name: 'free',
        parameters: { type: 'object', properties: { input: { type: 'string' } }, required: ['input'] },
      },
    ]);
    expect([...request.toolForms]).toEqual([
      ['apply_patch', { kind: 'custom' }],
      ['free', { kind: 'custom' }],
    ]);
    expect(request.adjusted).toEqual(['grammar of a custom tool moved to its description']);
  });

  it.each<[unknown, unknown, string[]]>([
    ['none', 'none', []],
    ['required', 'required', []],
    [{ type: 'function', function: { name: 'f' } }, { type: 'function', function: { name: 'f' } }, []],
    [{ type: 'custom', custom: { name: 'free' } }, { type: 'function', function: { name: 'free' } }, []],
    [{ type: 'function', function: { name: 'g' } }, null, ['tool_choice ignored: it names no tool of the request']],
    [
      { type: 'allowed_tools', allowed_tools: { mode: 'required', tools: [{ type: 'function' }] } },
      'required',
      ['tool_choice.allowed_tools: all tools stay allowed'],
    ],
  ])('are forced or not by the choice %j', (tool_choice, toolChoice, adjusted) => {
    const tools = [
      { type: 'function', function: { name: 'f' } },
      { type: 'custom', custom: { name: 'free' } },
    ];
    expect(parse({ tools, tool_choice })).toMatchObject({ toolChoice, adjusted });
  });

  it.each([['any'], [{ type: 'function' }], [{ type: 'allowed_tools' }]])(
    'are refused with the unknown choice %j',
    (tool_choice) => {
      expect(() => parse({ tool_choice })).toThrow('tool_choice');
    },
  );
});

describe('a call of a custom tool', () => {
  const request = parse({ tools: [patch, { type: 'function', function: { name: 'f' } }] });
  const call = (id: string, name: string, args: string) => ({
    id,
    type: 'function' as const,
    function: { name, arguments: args },
  });
  const reply = (...calls: ReturnType<typeof call>[]): CanonicalReply => ({
    completionId: 'cpl_1',
    model: 'm',
    promptTokens: 1,
    createdMs: 0,
    message: { role: 'assistant', content: null, tool_calls: calls },
    finishReason: 'tool_calls',
    stopText: null,
    usage: { prompt_tokens: 1, completion_tokens: 1, cached_tokens: null },
  });
  const calls = [
    call('a', 'apply_patch', '{"input": "x\\n\\u00e9"}'),
    call('b', 'f', '{ "n": 1 }'),
    call('c', 'apply_patch', 'cut {'),
  ];
  const custom = (id: string, input: string) => ({ id, type: 'custom', custom: { name: 'apply_patch', input } });

  it('is returned with its text alone, and with other arguments unchanged', () => {
    const { message } = JSON.parse(openaiChat.encodeReply(reply(...calls), request)).choices[0];
    expect(message.tool_calls).toEqual([custom('a', 'x\né'), calls[1], custom('c', 'cut {')]);
    const echoed = parse({ messages: [message] }).messages[0];
    expect(echoed).toMatchObject({
      tool_calls: [
        call('a', 'apply_patch', '{"input":"x\\né"}'),
        calls[1],
        call('c', 'apply_patch', '{"input":"cut {"}'),
      ],
    });
  });

  it.each([['{"input": 5}'], ['{"text": "x"}'], ['["input"]'], ['null'], ['']])(
    'has the arguments %j as its text',
    (args) => {
      const { message } = JSON.parse(openaiChat.encodeReply(reply(call('a', 'apply_patch', args)), request)).choices[0];
      expect(message.tool_calls).toEqual([custom('a', args)]);
    },
  );

  it('is streamed with its text in one piece before the next call', () => {
    const { body, end } = streamOf(openaiChat, reply(...calls), request);
    const callsIn = (text: string): unknown[] =>
      text
        .split('\n\n')
        .filter((event) => event.startsWith('data: {'))
        .flatMap((event) => JSON.parse(event.slice('data: '.length)).choices[0].delta.tool_calls ?? []);
    // Two parts of the reply are held back until the end of the reply: the arguments of the first tool call, and the whole second tool call.
    // A client that got one of these parts earlier would run the first tool call too early.
    expect(callsIn(body)).toEqual([{ index: 0, ...custom('a', '') }]);
    expect(callsIn(body + end)).toEqual([
      { index: 0, ...custom('a', '') },
      { index: 0, custom: { input: 'x\né' } },
      { index: 1, ...call('b', 'f', '') },
      { index: 1, function: { arguments: '{ "n": 1 }' } },
      { index: 2, ...custom('c', '') },
      { index: 2, custom: { input: 'cut {' } },
    ]);
  });
});
