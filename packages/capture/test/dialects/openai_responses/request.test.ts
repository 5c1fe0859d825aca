import { FloeError } from '@floe-rl/core';
import type { CallRules } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { type CanonicalRequest, plainContext } from '../../../src/dialects/dialect.ts';
import { sealText } from '../../../src/dialects/opaque-fields.ts';
import { openaiResponses } from '../../../src/dialects/openai_responses/dialect.ts';
import { COMPACTION_PROMPT } from '../../../src/dialects/openai_responses/history.ts';
import { matchRoute } from '../../../src/dialects/registry.ts';

const parse = (over: object, headers = {}, rules: CallRules | null = null): CanonicalRequest =>
  openaiResponses.parseRequest({ model: 'm', input: 'hi', ...over }, plainContext(headers, rules));

const messagesOf = (input: object[], over: object = {}) => parse({ input, ...over }).messages;
const user = (content: unknown) => ({ type: 'message', role: 'user', content });
const assistant = (text: string, id?: string) => ({
  type: 'message',
  role: 'assistant',
  ...(id === undefined ? {} : { id }),
  content: [{ type: 'output_text', text, annotations: [] }],
});
const call = (callId: string, args = '{}', over: object = {}) => ({
  type: 'function_call',
  call_id: callId,
  name: 'f',
  arguments: args,
  ...over,
});
const output = (callId: string, value: unknown = 'ok') => ({
  type: 'function_call_output',
  call_id: callId,
  output: value,
});
const canonicalCall = (id: string, args = '{}', name = 'f') => ({
  id,
  type: 'function',
  function: { name, arguments: args },
});
const thinking = (text: string) => ({ type: 'reasoning', summary: [{ type: 'summary_text', text }] });
const image = 'data:image/png;base64,AA';
const imagePart = { type: 'image_url', image_url: { url: image } };

const refusalOf = (over: object): FloeError => {
  try {
    parse(over);
  } catch (error) {
    if (FloeError.is(error)) return error;
    throw error;
  }
  throw new Error('was accepted');
};

describe('a responses request', () => {
  it('becomes canonical as Codex sends it and notes what was dropped', () => {
    const request = parse({
      input: [
        {
          type: 'message',
          role: 'developer',
          id: 'msg_1',
          content: [{ type: 'input_text', text: 'You are an agent.' }],
        },
        user([
          { type: 'input_text', text: 'do' },
          { type: 'input_text', text: 'it' },
        ]),
      ],
      tools: [
        {
          type: 'function',
          name: 'exec_command',
          description: 'Runs',
          strict: false,
          parameters: { type: 'object', properties: { n: { type: ['integer', 'null'] } } },
        },
        { type: 'function', name: 'bare', parameters: null },
        { type: 'web_search' },
        { type: 'image_generation' },
      ],
      tool_choice: 'auto',
      parallel_tool_calls: true,
      stream: true,
      store: false,
      include: ['reasoning.encrypted_content'],
      prompt_cache_key: 'session',
      client_metadata: { a: 'b' },
      service_tier: 'auto',
      metadata: {},
      reasoning: { summary: 'auto', effort: 'high' },
      text: { verbosity: 'low' },
      truncation: 'auto',
      max_output_tokens: 20,
      temperature: 0,
      top_p: 0.95,
      top_logprobs: 1,
      frequency_penalty: 0.1,
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
            name: 'exec_command',
            description: 'Runs',
            parameters: { type: 'object', properties: { n: { type: ['integer', 'null'] } } },
          },
        },
        { type: 'function', function: { name: 'bare' } },
      ],
      toolForms: new Map(),
      toolChoice: 'auto',
      parallelToolCalls: true,
      samplingAsked: { temperature: 0, top_p: 0.95, max_tokens: 20 },
      stream: true,
      streamUsage: true,
      previousCompletionId: null,
      replyShape: { previousResponse: null, compaction: false, sealedThinking: true },
      claimedCompletions: new Map(),
      adjusted: [
        'hosted tool web_search dropped',
        'hosted tool image_generation dropped',
        'developer message sent as system',
        'top_logprobs ignored',
        'frequency_penalty ignored',
        'reasoning.effort ignored',
        'text.verbosity ignored',
        'truncation ignored',
      ],
      thread: 'main',
      callKind: 'main',
    });
  });

  it('accepts a string, items without a type, and instructions before developer text', () => {
    expect(parse({ input: 'hi' }).messages).toEqual([{ role: 'user', content: 'hi' }]);
    const items = [
      { role: 'developer', content: 'b' },
      { role: 'user', content: 'u' },
      { role: 'assistant', content: [{ type: 'output_text', text: 'x' }] },
      { role: 'system', content: [{ type: 'input_text', text: 'late' }] },
    ];
    expect(messagesOf(items, { instructions: 'a' })).toEqual([
      { role: 'system', content: 'a\nb' },
      { role: 'user', content: 'u' },
      { role: 'assistant', content: 'x' },
      { role: 'user', content: 'late' },
    ]);
  });

  it('keeps images and notes what it drops', () => {
    const request = parse({
      input: [
        user([
          { type: 'input_text', text: 'see' },
          { type: 'input_image', image_url: image, detail: 'high' },
          { type: 'input_image', file_id: 'file_1' },
          { type: 'input_file', file_id: 'file_2' },
        ]),
        {
          role: 'assistant',
          content: [
            { type: 'refusal', refusal: 'no' },
            { type: 'input_image', image_url: image },
          ],
        },
      ],
    });
    expect(request.messages).toEqual([
      { role: 'user', content: [{ type: 'text', text: 'see' }, imagePart] },
      { role: 'assistant', content: 'no' },
    ]);
    expect(request.adjusted).toEqual([
      'input_image without image_url dropped',
      'input_file dropped',
      'image outside a user message dropped',
    ]);
  });

  it('translates output formats', () => {
    const schema = { properties: { title: { type: 'string' } } };
    const format = { type: 'json_schema', name: 'n', schema, strict: true };
    expect(parse({ text: { format } }, {}, 'qwen_code')).toMatchObject({
      samplingAsked: { response_format: { type: 'json_schema', json_schema: { name: 'n', schema, strict: true } } },
      callKind: 'title',
    });
    expect(parse({ text: { format: { type: 'json_object' } } }).samplingAsked).toEqual({
      response_format: { type: 'json_object' },
    });
    expect(parse({ text: { format: { type: 'text' } } }).samplingAsked).toEqual({});
  });

  it.each<[object, string]>([
    [{ model: 5 }, 'model'],
    [{ input: 5 }, 'input: '],
    [{ input: [5] }, 'input.0: '],
    [{ input: [user([{ type: 'input_audio' }])] }, 'input.0.content.0.type: '],
    [{ input: ['a', user('b')].slice(1).concat(user([{ type: 'input_text' }])) }, 'input.1.content.0.text: '],
    [{ input: [{ role: 'tool', content: 'x' }] }, 'input.0.role: '],
    [{ input: [{ type: 'function_call', call_id: 'a', name: 'f', arguments: {} }] }, 'input.0.arguments: '],
    [{ input: [{ type: 'function_call_output', output: 'x' }] }, 'input.0.call_id: '],
    [{ input: [output('a', [{ type: 'input_image', image_url: 5 }])] }, 'input.0.output.0.image_url: '],
    [{ input: [{ type: 'custom_tool_call', call_id: 'a', name: 'f' }] }, 'input.0.input: '],
    [{ input: [{ type: 'reasoning', summary: 'x' }] }, 'input.0.summary: '],
    [{ input: [{ type: 'additional_tools', tools: [{ type: 'function' }] }] }, 'input.0.tools.0.name: '],
    [{ input: [{ type: 'compaction' }] }, 'input.0.encrypted_content: '],
    [{ input: [] }, 'input: '],
    [{ tools: [{ type: 'function', name: 'f', parameters: 'x' }] }, 'tools.0.parameters: '],
    [{ tools: [{ type: 'namespace', name: 'n', tools: [{ type: 'function' }] }] }, 'tools.0.tools.0.name: '],
    [{ tools: [{ type: 'namespace', name: 'n'.repeat(513), tools: [] }] }, 'tools.0.name: '],
    [{ tools: [{}] }, 'tools.0.type: '],
    [{ tools: [{ type: 'custom', name: 'c', format: { type: 'grammar' } }] }, 'tools.0.format.syntax: '],
    [{ tool_choice: { name: 'f' } }, 'tool_choice.type: '],
    [{ max_output_tokens: 0 }, 'max_output_tokens: '],
    [{ text: { format: { type: 'json_schema', name: 'n' } } }, 'text.format.schema: '],
  ])('is refused with the path of a field with a wrong type: %j', (over, path) => {
    const error = refusalOf(over);
    expect(error.code).toBe('schema_violation');
    expect(error.message).toContain(`responses request: ${path}`);
  });

  it.each<[object, string]>([
    [{ conversation: 'conv_1' }, 'conversation: '],
    [{ prompt: { id: 'pmpt_1' } }, 'prompt: '],
    [{ background: true }, 'background: '],
    [{ previous_response_id: 'chatcmpl-1' }, 'previous_response_id: '],
    [{ previous_response_id: 'resp_' }, 'previous_response_id: '],
    [{ input: [{ type: 'hologram' }] }, 'input.0.type: unknown item type "hologram"'],
    [{ input: [{ type: '__proto__' }] }, 'input.0.type: unknown item type'],
    [{ input: [{ type: 'compaction', encrypted_content: 'gAAAA' }] }, 'input.0.encrypted_content: '],
    [{ input: [{ type: 'compaction_trigger' }, user('x')] }, 'input.1: nothing may follow'],
  ])("is refused by field name when it refers to objects on the vendor's servers: %j", (over, path) => {
    const error = refusalOf(over);
    expect(error.code).toBe('unsupported');
    expect(error.message.startsWith(path)).toBe(true);
  });

  it('names the completion of the previous response and contains only new messages', () => {
    const request = parse({
      previous_response_id: 'resp_cpl_7',
      instructions: 'rules',
      input: [output('a', 'done'), { role: 'developer', content: 'now' }, user('next')],
    });
    expect(request.previousCompletionId).toBe('cpl_7');
    expect(request.messages).toEqual([
      { role: 'system', content: 'rules' },
      { role: 'tool', tool_call_id: 'a', content: 'done' },
      { role: 'user', content: 'now\nnext' },
    ]);
    expect(request.adjusted).not.toContain('a tool result answers no call');
    // Developer text at the start of the input must not become the system message when the request continues an earlier reply.
    const continued = parse({ previous_response_id: 'resp_cpl_7', input: [{ role: 'developer', content: 'x' }] });
    expect(continued.messages).toEqual([{ role: 'user', content: 'x' }]);
  });

  it('needs no model when tokens are counted', () => {
    expect(openaiResponses.parseCount({ input: 'hi' }, plainContext()).messages).toEqual([
      { role: 'user', content: 'hi' },
    ]);
    expect(() => openaiResponses.parseRequest({ input: 'hi' }, plainContext())).toThrow('model');
    expect(JSON.parse(openaiResponses.encodeCount(5))).toEqual({ object: 'response.input_tokens', input_tokens: 5 });
  });
});

describe('a request of a hundred thousand pieces', () => {
  const many = <T>(piece: T): T[] => new Array<T>(100_000).fill(piece);
  const begun = [user('x'), assistant('y')];

  it.each<[string, object[], number]>([
    ['system text after a reply', [...begun, ...many({ role: 'developer', content: 'z' })], 3],
    ['images of one result', [...begun, output('a', many({ type: 'input_image', image_url: image }))], 4],
    [
      'images between texts',
      [...begun, output('a', [{ type: 'input_image', image_url: image }]), ...many({ role: 'system', content: 'z' })],
      4,
    ],
    ['calls', many(call('a')), 1],
  ])('is translated in reasonable time: %s', (_, input, count) => {
    expect(messagesOf(input)).toHaveLength(count);
  });
});

describe('the items of one reply', () => {
  it('form one message with thinking, text and calls in order', () => {
    const items = [thinking('t'), assistant('x'), call('a', '{ "x":1'), call('b', ''), output('a'), output('b')];
    expect(messagesOf(items)).toEqual([
      {
        role: 'assistant',
        content: 'x',
        reasoning_content: 't',
        tool_calls: [canonicalCall('a', '{ "x":1'), canonicalCall('b', '')],
      },
      { role: 'tool', tool_call_id: 'a', content: 'ok' },
      { role: 'tool', tool_call_id: 'b', content: 'ok' },
    ]);
  });

  it('form a message without text, with or without an empty message item', () => {
    const expected = [{ role: 'assistant', content: null, tool_calls: [canonicalCall('a')] }];
    expect(messagesOf([call('a')])).toEqual(expected);
    expect(messagesOf([assistant(''), call('a')])).toEqual(expected);
    expect(messagesOf([thinking('t')])).toEqual([{ role: 'assistant', content: '', reasoning_content: 't' }]);
  });

  it('end where the item order of a reply restarts', () => {
    expect(messagesOf([assistant('one'), assistant('two'), thinking('t'), call('a'), thinking('u')])).toEqual([
      { role: 'assistant', content: 'one' },
      { role: 'assistant', content: 'two' },
      { role: 'assistant', content: null, reasoning_content: 't', tool_calls: [canonicalCall('a')] },
      { role: 'assistant', content: '', reasoning_content: 'u' },
    ]);
  });

  it('are recognised by their ids, in any order and with anything between them', () => {
    const items = [
      call('a', '{}', { id: 'fc_cpl_1_0' }),
      output('a'),
      call('b', '{}', { id: 'fc_cpl_1_1' }),
      output('b'),
      assistant('late', 'msg_cpl_1'),
      assistant('other', 'msg_cpl_2'),
      call('c', '{}', { id: 'fc_cpl_3_0' }),
    ];
    expect(messagesOf(items)).toEqual([
      { role: 'assistant', content: 'late', tool_calls: [canonicalCall('a'), canonicalCall('b')] },
      { role: 'tool', tool_call_id: 'a', content: 'ok' },
      { role: 'tool', tool_call_id: 'b', content: 'ok' },
      { role: 'assistant', content: 'other' },
      { role: 'assistant', content: null, tool_calls: [canonicalCall('c')] },
    ]);
  });

  it('end at a result when they have no ids', () => {
    expect(messagesOf([call('a'), output('a'), call('b')]).map(({ role }) => role)).toEqual([
      'assistant',
      'tool',
      'assistant',
    ]);
  });

  it('are not split by items of hosted tools, which are dropped', () => {
    const request = parse({ input: [thinking('t'), { type: 'web_search_call', id: 'ws_1' }, call('a')] });
    expect(request.messages).toHaveLength(1);
    expect(request.adjusted).toEqual(['hosted item web_search_call dropped']);
    expect(parse({ input: [user('x'), { type: 'local_shell_call' }] }).adjusted).toEqual([
      'hosted item local_shell_call dropped',
    ]);
  });
});

describe('thinking', () => {
  const summary = [{ type: 'summary_text', text: 's' }];
  const content = [{ type: 'reasoning_text', text: 'c' }];
  const sealed = sealText('thinking', 'cpl_1', 'e\u2028é');
  it.each<[object, string | undefined]>([
    [{ content, summary, encrypted_content: sealed }, 'c'],
    [{ content: [], summary, encrypted_content: sealed }, 's'],
    [{ content: null, summary: [], encrypted_content: sealed }, 'e\u2028é'],
    [{ summary: [], encrypted_content: 'gAAAA' }, undefined],
    [{ summary: [], encrypted_content: sealText('summary', 'cpl_1', 'x') }, undefined],
    [{}, undefined],
  ])('is the raw text, otherwise the summary, otherwise the sealed text: %j', (over, expected) => {
    expect(messagesOf([{ type: 'reasoning', ...over }])).toEqual([
      { role: 'assistant', content: '', ...(expected === undefined ? {} : { reasoning_content: expected }) },
    ]);
  });

  it('is dropped and noted when another service encrypted it', () => {
    const request = parse({ input: [{ type: 'reasoning', summary: [], encrypted_content: 'gAAAA' }] });
    expect(request.adjusted).toEqual(['reasoning encrypted elsewhere dropped']);
  });
});

describe('tool results', () => {
  it('are accepted as text, parts or nothing, and their images follow in a user message', () => {
    const items = [
      call('a'),
      call('b'),
      call('c'),
      output('a', [
        { type: 'input_text', text: 'one' },
        { type: 'output_text', text: 'two' },
        { type: 'input_image', image_url: image },
      ]),
      output('b', null),
      { ...output('c', 'three'), type: 'custom_tool_call_output' },
      user('next'),
    ];
    expect(messagesOf(items).slice(1)).toEqual([
      { role: 'tool', tool_call_id: 'a', content: 'one\ntwo' },
      { role: 'tool', tool_call_id: 'b', content: '' },
      { role: 'tool', tool_call_id: 'c', content: 'three' },
      { role: 'user', content: [imagePart, { type: 'text', text: 'next' }] },
    ]);
  });
});

describe('the tools of a request', () => {
  it('become functions with one argument and the grammar in the description when they take free text', () => {
    const format = { type: 'grammar', syntax: 'lark', definition: 'start: "x"' };
    const { tools, toolForms, messages } = parse({
      tools: [
        { type: 'custom', name: 'apply_patch', description: 'Patches', format },
        { type: 'custom', name: 'free' },
      ],
      input: [{ type: 'custom_tool_call', call_id: 'a', name: 'apply_patch', input: '*** "Begin"\n' }],
    });
    const [patch, free] = tools.map((tool) => tool.function);
    expect(patch?.description).toContain('Patches');
    expect(patch?.description).toContain('lark');
    expect(patch?.description).toContain('start: "x"');
    expect(patch?.parameters).toMatchObject({ properties: { input: { type: 'string' } }, required: ['input'] });
    expect(free?.parameters).toEqual(patch?.parameters);
    expect(toolForms.get('apply_patch')).toEqual({ kind: 'custom' });
    expect(messages).toEqual([
      {
        role: 'assistant',
        content: null,
        tool_calls: [canonicalCall('a', '{"input":"*** \\"Begin\\"\\n"}', 'apply_patch')],
      },
    ]);
  });

  it('have the namespace in their canonical name, also in the history', () => {
    const long = 'n'.repeat(60);
    const request = parse({
      tools: [
        {
          type: 'namespace',
          name: 'agents',
          description: 'Sub-agents',
          tools: [
            { type: 'function', name: 'spawn', description: 'Starts one', parameters: { type: 'object' } },
            { type: 'custom', name: 'exec' },
            { type: 'web_search' },
          ],
        },
        { type: 'function', name: 'spawn' },
        {
          type: 'namespace',
          name: long,
          tools: [
            { type: 'function', name: 'one' },
            { type: 'function', name: 'two' },
          ],
        },
      ],
      input: [
        call('a', '{}', { name: 'spawn', namespace: 'agents' }),
        call('b', '{}', { name: 'one', namespace: long }),
      ],
    });
    const names = request.tools.map((tool) => tool.function.name);
    expect(names.slice(0, 3)).toEqual(['agents__spawn', 'agents__exec', 'spawn']);
    expect(names.every((name) => name.length <= 64)).toBe(true);
    expect(new Set(names).size).toBe(5);
    expect([...request.toolForms]).toEqual([
      ['agents__spawn', { kind: 'namespaced', namespace: 'agents', name: 'spawn' }],
      ['agents__exec', { kind: 'custom', namespace: 'agents', name: 'exec' }],
      [names[3], { kind: 'namespaced', namespace: long, name: 'one' }],
      [names[4], { kind: 'namespaced', namespace: long, name: 'two' }],
    ]);
    expect(request.messages[0]).toMatchObject({
      tool_calls: [canonicalCall('a', '{}', 'agents__spawn'), canonicalCall('b', '{}', names[3])],
    });
    expect(request.adjusted).toEqual(['description of a tool namespace dropped', 'hosted tool web_search dropped']);
  });

  it('may also be declared and repeated in the input', () => {
    const exec = { type: 'custom', name: 'exec' };
    const request = parse({
      tools: [{ type: 'function', name: 'f' }],
      input: [
        { type: 'additional_tools', role: 'developer', tools: [exec] },
        user('x'),
        { type: 'additional_tools', role: 'developer', tools: [exec, { type: 'function', name: 'g' }] },
      ],
    });
    expect(request.tools.map((tool) => tool.function.name)).toEqual(['f', 'exec', 'g']);
    expect(request.messages).toEqual([{ role: 'user', content: 'x' }]);
  });

  it.each<[object, string]>([
    [
      {
        tools: [
          { type: 'function', name: 'f' },
          { type: 'custom', name: 'f' },
        ],
      },
      'tools.1',
    ],
    [
      {
        tools: [
          { type: 'namespace', name: 'a', tools: [{ type: 'function', name: 'b__c' }] },
          { type: 'namespace', name: 'a__b', tools: [{ type: 'function', name: 'c' }] },
        ],
      },
      'tools.1.tools.0',
    ],
    [
      {
        tools: [{ type: 'function', name: 'f' }],
        input: [{ type: 'additional_tools', tools: [{ type: 'function', name: 'f', description: 'other' }] }],
      },
      'input.0.tools.0',
    ],
  ])('are refused when two have the same name: %j', (over, path) => {
    expect(refusalOf(over).message).toContain(`${path}: a second tool`);
  });

  it('may have names such as __proto__', () => {
    const names = ['__proto__', 'constructor', 'toString'];
    const { tools, toolForms } = parse({ tools: names.map((name) => ({ type: 'custom', name })) });
    expect(tools.map((tool) => tool.function.name)).toEqual(names);
    expect(names.map((name) => toolForms.get(name))).toEqual(names.map(() => ({ kind: 'custom' })));
  });

  const tools = [
    { type: 'function', name: 'f' },
    { type: 'custom', name: 'c' },
    { type: 'namespace', name: 'n', tools: [{ type: 'function', name: 'g' }] },
  ];
  const choiceOf = (name: string) => ({ type: 'function', function: { name } });
  it.each<[unknown, unknown, string[]]>([
    ['auto', 'auto', []],
    ['none', 'none', []],
    ['required', 'required', []],
    [undefined, null, []],
    [{ type: 'function', name: 'f' }, choiceOf('f'), []],
    [{ type: 'custom', name: 'c' }, choiceOf('c'), []],
    [{ type: 'function', name: 'g', namespace: 'n' }, choiceOf('n__g'), []],
    [{ type: 'function', name: 'gone' }, null, ['tool_choice ignored: it names no tool of the request']],
    [
      { type: 'allowed_tools', mode: 'required', tools: [] },
      'required',
      ['allowed_tools: the tool list is sent in full'],
    ],
    [{ type: 'web_search_preview' }, 'auto', ['choice of the hosted tool web_search_preview ignored']],
  ])('are chosen by the tool choice %j', (tool_choice, expected, adjusted) => {
    const request = parse({ tools, tool_choice });
    expect(request.toolChoice).toEqual(expected);
    expect(request.adjusted).toEqual(adjusted);
  });
});

describe('compaction', () => {
  it('is requested from the policy by a prompt when the last item triggers it', () => {
    const request = parse({
      tools: [{ type: 'function', name: 'f' }],
      input: [user('task'), assistant('done'), { type: 'compaction_trigger' }],
    });
    expect(request).toMatchObject({ callKind: 'compaction', thread: 'main', toolChoice: 'none' });
    expect(request.replyShape?.compaction).toBe(true);
    expect(request.messages.at(-1)).toEqual({ role: 'user', content: COMPACTION_PROMPT });
    expect(request.tools).toHaveLength(1);
    expect(request.adjusted).toEqual(['compaction_trigger sent as a request for a summary']);
  });

  it.each(['compaction', 'compaction_summary', 'context_compaction'])(
    'restores its summary from an item of type %s',
    (type) => {
      const messages = messagesOf([
        user('kept'),
        { type, encrypted_content: sealText('summary', 'cpl_1', 'The state: é') },
      ]);
      expect(messages).toHaveLength(2);
      expect(messages[1]?.role).toBe('user');
      expect(messages[1]?.content).toContain('The state: é');
    },
  );
});

describe('the paths of the dialect', () => {
  it.each(['/v1/responses', '/responses'])('include generation and counting at %s', (path) => {
    expect(matchRoute('POST', path, {})).toMatchObject({ found: true, kind: 'generate', dialect: openaiResponses });
    expect(matchRoute('POST', `${path}/input_tokens`, {})).toMatchObject({ found: true, kind: 'count_tokens' });
  });

  it.each(['/v1/responses/resp_1', '/v1/responses/resp_1/cancel', '/v1/responses/compact', '/v1/conversations'])(
    'do not include %s',
    (path) => {
      expect(matchRoute('POST', path, {}).found).toBe(false);
      expect(matchRoute('GET', path, {})).toMatchObject({ found: false, allow: [] });
    },
  );

  it('are part of this dialect even when unknown, so that errors have its form', () => {
    expect(matchRoute('GET', '/v1/responses/resp_1', {}).dialect).toBe(openaiResponses);
    expect(matchRoute('GET', '/v1/responses', {})).toMatchObject({
      found: false,
      allow: ['POST'],
      dialect: openaiResponses,
    });
  });
});
