import { describe, expect, it } from 'vitest';
import { anthropic } from '../../../src/dialects/anthropic/dialect.ts';
import { type CanonicalRequest, plainContext } from '../../../src/dialects/dialect.ts';

const text = (value: string, over = {}) => ({ type: 'text', text: value, ...over });
const user = { role: 'user', content: 'hi' };

const parse = (over: object): CanonicalRequest =>
  anthropic.parseRequest({ model: 'm', max_tokens: 100, messages: [user], ...over }, plainContext());
/** Parses a conversation that consists of a user message, an assistant message with this content, and another user message. */
const afterAssistant = (content: unknown) => parse({ messages: [user, { role: 'assistant', content }, user] });

describe('system text', () => {
  const billing = 'x-anthropic-billing-header: cc_version=2.1.329.ab1; cc_entrypoint=sdk-cli; cch=1f2e3;';

  it.each<[string, unknown]>([
    ['a string', 'S'],
    ['one block', [text('S')]],
    ['one block with a cache mark', [text('S', { cache_control: { type: 'ephemeral', ttl: '1h' } })]],
    ['a block after the billing block', [text(billing), text('S')]],
    ['a block after a billing block with a line end', [text(`${billing}\n`), text('S')]],
  ])('is the same when sent as %s', (_, system) => {
    expect(parse({ system }).messages[0]).toEqual({ role: 'system', content: 'S' });
  });

  it.each<[string, unknown]>([
    ['none', undefined],
    ['null', null],
    ['an empty string', ''],
    ['no blocks', []],
    ['the billing block alone', billing],
  ])('adds no message when it is %s', (_, system) => {
    expect(parse({ system }).messages).toEqual([user]);
  });

  it('is refused when it is empty and nothing else is in the request', () => {
    expect(() => parse({ messages: [{ role: 'system', content: [text(billing)] }] })).toThrow(
      'messages: there is no text',
    );
  });

  it('is kept when it only starts like a billing block', () => {
    const system = `${billing}\nYou are an agent.`;
    expect(parse({ system })).toMatchObject({ messages: [{ role: 'system', content: system }, user], adjusted: [] });
  });

  it('is kept in linear time when it starts like a billing block and has much white space', () => {
    const system = `${billing}${' '.repeat(300_000)}\nYou are an agent.`;
    expect(parse({ system }).messages[0]).toEqual({ role: 'system', content: system });
  });

  it('loses its billing block in a message, too', () => {
    const { messages } = parse({ messages: [{ role: 'system', content: [text(billing), text('env')] }, user] });
    expect(messages).toEqual([{ role: 'system', content: 'env' }, user]);
  });

  it.each<[unknown, string]>([
    [5, 'system'],
    [[text('a'), { type: 'image' }], 'system.1.type'],
  ])('is refused with its path when it has another type: %j', (system, path) => {
    expect(() => parse({ system })).toThrow(path);
  });
});

describe('an assistant message', () => {
  const thinking = (value: string) => ({ type: 'thinking', thinking: value, signature: 'sig' });
  const use = (id: string) => ({ type: 'tool_use', id, name: 'f', input: {} });
  const reordered = 'blocks of an assistant message reordered: thinking, text, calls';

  it.each<[string, object[], string[]]>([
    ['in canonical order', [thinking('a'), text('b'), use('1'), use('2')], []],
    ['with thinking between texts', [text('b'), thinking('a'), use('1'), use('2')], [reordered]],
    ['with text after a call', [thinking('a'), use('1'), text('b'), use('2')], [reordered]],
    ['with thinking between calls', [text('b'), use('1'), thinking('a'), use('2')], [reordered]],
  ])('has one thinking, one text and its calls: %s', (_, content, notes) => {
    const { messages, adjusted } = afterAssistant(content);
    const ids = messages[1]?.role === 'assistant' ? messages[1].tool_calls?.map(({ id }) => id) : [];
    expect(messages[1]).toMatchObject({ content: 'b', reasoning_content: 'a' });
    expect(ids).toEqual(['1', '2']);
    expect(adjusted).toEqual(notes);
  });

  it("drops blocks of the vendor's tools and notes it", () => {
    const content = [
      { type: 'server_tool_use', id: 's', name: 'web_search', input: {} },
      { type: 'web_search_tool_result', tool_use_id: 's', content: [] },
      { type: 'mcp_tool_use', id: 'm', name: 'x', server_name: 'y', input: {} },
      { type: 'mcp_tool_result', tool_use_id: 'm', content: [] },
      { type: 'redacted_thinking', data: 'x' },
      text('found', { citations: [{ type: 'web_search_result_location' }] }),
    ];
    const { messages, adjusted } = afterAssistant(content);
    expect(messages[1]).toEqual({ role: 'assistant', content: 'found' });
    expect(adjusted).toEqual([
      'server_tool_use block dropped',
      'web_search_tool_result block dropped',
      'mcp_tool_use block dropped',
      'mcp_tool_result block dropped',
      'redacted_thinking block dropped',
      'citations dropped',
    ]);
  });

  it.each<[unknown, string]>([
    [{ __unparsedToolInput: { raw: '{"a": 1,', len: 8 } }, '{"a": 1,'],
    [{ __unparsedToolInput: { len: 8 } }, '{"__unparsedToolInput":{"len":8}}'],
    [{ __unparsedToolInput: { raw: 'x' }, other: 1 }, '{"__unparsedToolInput":{"raw":"x"},"other":1}'],
    [{ b: 1, a: 'é' }, '{"b":1,"a":"é"}'],
    [{}, '{}'],
    ['echo hello', '"echo hello"'],
    [[1], '[1]'],
    [null, 'null'],
  ])('translates the input %j to the arguments %s', (input, expected) => {
    const { messages } = afterAssistant([{ type: 'tool_use', id: '1', name: 'f', input }]);
    expect(messages[1]).toMatchObject({ tool_calls: [{ function: { name: 'f', arguments: expected } }] });
  });

  it('returns arguments that were not JSON exactly as sampled', () => {
    const raw = '{"command": "ls';
    const message = {
      role: 'assistant' as const,
      content: null,
      tool_calls: [{ id: 'c', type: 'function' as const, function: { name: 'f', arguments: raw } }],
    };
    const usage = { prompt_tokens: 1, completion_tokens: 1, cached_tokens: null };
    const head = { completionId: 'cpl_1', model: 'm', promptTokens: 1, createdMs: 0 };
    const body = anthropic.encodeReply({ ...head, message, finishReason: 'stop', stopText: null, usage }, parse({}));
    expect(afterAssistant(JSON.parse(body).content).messages[1]).toEqual(message);
  });

  it('is refused with its path at the end of a request, but accepted in a count request', () => {
    const messages = [user, { role: 'assistant', content: '{' }];
    expect(() => parse({ messages })).toThrow(/^messages\.1: /);
    expect(() => parse({ messages: [...messages, { role: 'system', content: 's' }] })).not.toThrow();
    expect(anthropic.parseCount({ messages }, plainContext()).messages).toEqual(messages);
  });
});

describe('a user message', () => {
  const use = (...ids: string[]) => ({
    role: 'assistant',
    content: ids.map((id) => ({ type: 'tool_use', id, name: 'f', input: {} })),
  });
  const result = (id: string, over = {}) => ({ type: 'tool_result', tool_use_id: id, content: id, ...over });
  const answered = (...content: object[]) => parse({ messages: [user, use('a', 'b'), { role: 'user', content }] });

  it('is ordered with its tool results first', () => {
    const { messages, adjusted } = answered(result('a'), result('b'), text('and'), text('now'));
    expect(messages.slice(2)).toEqual([
      { role: 'tool', tool_call_id: 'a', content: 'a' },
      { role: 'tool', tool_call_id: 'b', content: 'b' },
      { role: 'user', content: 'and\nnow' },
    ]);
    expect(adjusted).toEqual([]);
  });

  it('is the same with and without a cache mark on a result', () => {
    const mark = { cache_control: { type: 'ephemeral' }, is_error: false };
    expect(answered(result('a', mark)).messages).toEqual(answered(result('a')).messages);
  });

  it('keeps and notes a result without a call, and a call id that occurs twice', () => {
    expect(answered(result('z'))).toMatchObject({
      messages: [user, {}, { role: 'tool', tool_call_id: 'z' }],
      adjusted: ['a tool result answers no call'],
    });
    const turns = [use('a'), { role: 'user', content: [result('a')] }];
    expect(parse({ messages: [user, ...turns, ...turns] }).adjusted).toEqual(['a tool call id occurs twice']);
  });

  it.each<[object, unknown, string[]]>([
    [{ type: 'document', source: { type: 'text', media_type: 'text/plain', data: 'D' } }, 'D', []],
    [{ type: 'document', source: { type: 'base64', data: '' } }, '', ['document block dropped']],
    [{ type: 'container_upload', file_id: 'f' }, '', ['container_upload block dropped']],
    [{ type: 'image', source: { type: 'file', file_id: 'f' } }, '', ['image file reference dropped']],
    [
      { type: 'image', source: { type: 'url', url: 'http://h/i.png' } },
      [{ type: 'image_url', image_url: { url: 'http://h/i.png' } }],
      [],
    ],
    [
      { type: 'search_result', source: 'src', title: 'T', content: [text('one'), text('two')], citations: {} },
      'T\nsrc\none\ntwo',
      ['search result sent as text'],
    ],
  ])('translates the block %j', (block, content, adjusted) => {
    const request = parse({ messages: [{ role: 'user', content: [block] }] });
    expect(request).toMatchObject({ messages: [{ role: 'user', content }], adjusted });
  });

  it.each<[unknown, string]>([
    [5, 'messages.0.content'],
    [undefined, 'messages.0.content'],
    [[{ type: 'tool_result', tool_use_id: 'a', content: [{ type: 'video' }] }], 'messages.0.content.0.content.0.type'],
    [[{ type: 'tool_result', tool_use_id: 'a', content: 5 }], 'messages.0.content.0.content'],
    [[{ type: 'tool_use', id: 'a', name: 'f', input: {} }], 'messages.0.content.0.type'],
  ])('is refused with its path when it has another type: %j', (content, path) => {
    expect(() => parse({ messages: [{ role: 'user', content }] })).toThrow(path);
  });
});

describe('the settings of a request', () => {
  it.each<[object, string[]]>([
    [{ thinking: { type: 'adaptive', display: 'omitted' } }, ['thinking ignored']],
    [{ thinking: { type: 'enabled', budget_tokens: 1_024 } }, ['thinking ignored']],
    [{ thinking: { type: 'disabled' } }, ['thinking ignored']],
    [{ output_config: { effort: 'high' } }, ['output_config.effort ignored']],
    [{ context_management: { edits: [{ type: 'clear_thinking_20251015' }] } }, ['context_management ignored']],
    [{ mcp_servers: [{}], container: 'c' }, ['mcp_servers ignored', 'container ignored']],
    [{ metadata: { user_id: '{"device_id":"d","session_id":"s"}' }, service_tier: 'auto' }, []],
    [{ output_config: {} }, []],
    [{ output_config: null, thinking: null, tools: null, stop_sequences: null, stream: null }, []],
  ])('note what is ignored: %j', (over, adjusted) => {
    expect(parse(over).adjusted).toEqual(adjusted);
  });

  const schema = { type: 'object', properties: { answer: { type: 'string' } } };
  const response_format = { type: 'json_schema', json_schema: { name: 'response', schema } };

  it.each<[object]>([
    [{ output_config: { format: { type: 'json_schema', schema } } }],
    [{ output_config: { format: { schema } } }],
    [{ output_format: { type: 'json_schema', schema } }],
  ])('request the output format from the engine when it is in %j', (over) => {
    expect(parse(over).samplingAsked).toEqual({ max_tokens: 100, response_format });
  });

  it.each<[unknown]>([[{ type: 'text' }], ['json'], [{ type: 'json_schema', schema: 'x' }]])(
    'note and ignore the output format %j',
    (format) => {
      expect(parse({ output_config: { format } })).toMatchObject({
        samplingAsked: { max_tokens: 100 },
        adjusted: ['output format without a schema ignored'],
      });
    },
  );

  it('need neither model nor max_tokens in a count request', () => {
    const request = anthropic.parseCount({ system: 'S', messages: [user], tools: [{ name: 'f' }] }, plainContext());
    expect(request).toMatchObject({ model: '', messages: [{ role: 'system', content: 'S' }, user] });
    expect(() => anthropic.parseRequest({ messages: [user] }, plainContext())).toThrow('model');
  });
});

describe('the tools of a request', () => {
  it.each<[object, object]>([
    [{ input_schema: { type: 'object', properties: {} } }, { parameters: { type: 'object', properties: {} } }],
    [{ input_schema: { type: 'object' }, type: 'custom' }, { parameters: { type: 'object' } }],
    [{ input_schema: null, description: '' }, {}],
    [{}, {}],
  ])('become functions: %j', (over, expected) => {
    expect(parse({ tools: [{ name: 'f', ...over }] }).tools).toEqual([
      { type: 'function', function: { name: 'f', ...expected } },
    ]);
  });

  it("are dropped when they run on the vendor's servers, and so is the choice of one", () => {
    const tools = [
      { type: 'bash_20250124', name: 'bash' },
      { type: 'mcp_toolset', mcp_server_name: 'x' },
      { name: 'f', strict: true },
    ];
    expect(parse({ tools, tool_choice: { type: 'tool', name: 'bash' } })).toMatchObject({
      tools: [{ function: { name: 'f' } }],
      toolChoice: null,
      adjusted: [
        'hosted tool bash_20250124 dropped',
        'hosted tool mcp_toolset dropped',
        'strict of a tool ignored',
        'tool_choice ignored: it names no tool of the request',
      ],
    });
  });

  it.each<[object, string]>([
    [{ input_schema: {} }, 'tools.0.name'],
    [{ name: 'f', input_schema: [] }, 'tools.0.input_schema'],
  ])('are refused with the path of a missing field: %j', (tool, path) => {
    expect(() => parse({ tools: [tool] })).toThrow(path);
  });
});
