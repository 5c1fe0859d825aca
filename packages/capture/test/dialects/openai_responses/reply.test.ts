import { FloeError } from '@floe-rl/core';
import type { AssistantMessage } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type CanonicalReply, type CanonicalRequest, plainContext } from '../../../src/dialects/dialect.ts';
import { openaiResponses } from '../../../src/dialects/openai_responses/dialect.ts';
import type { ReplyDelta } from '../../../src/reply.ts';
import { streamOf } from '../whole-stream.ts';

const TOOLS = [
  { type: 'function', name: 'f' },
  { type: 'custom', name: 'patch' },
  {
    type: 'namespace',
    name: 'agents',
    tools: [
      { type: 'function', name: 'spawn' },
      { type: 'custom', name: 'exec' },
    ],
  },
];

const parse = (over: object = {}): CanonicalRequest =>
  openaiResponses.parseRequest({ model: 'asked', input: 'hi', tools: TOOLS, ...over }, plainContext());

const sealing = { include: ['reasoning.encrypted_content'] };
const compacting = { input: [{ type: 'compaction_trigger' }] };

const callOf = (id: string, name: string, args: string) => ({
  id,
  type: 'function' as const,
  function: { name, arguments: args },
});

const reply = (over: Partial<CanonicalReply> = {}): CanonicalReply => ({
  completionId: 'cpl_1',
  model: 'asked',
  promptTokens: 10,
  createdMs: 1_500,
  message: {
    role: 'assistant',
    content: ' Text\u2028',
    reasoning_content: 'Think é',
    tool_calls: [
      callOf('c1', 'f', '{"b": 1'),
      callOf('c2', 'agents__spawn', ''),
      callOf('c3', 'patch', '{"input": "*** \\"x\\"\\n"}'),
      callOf('c4', 'unknown', '{}'),
    ],
  },
  finishReason: 'tool_calls',
  stopText: null,
  usage: { prompt_tokens: 10, completion_tokens: 4, cached_tokens: 6 },
  ...over,
});

type Item = { id: string; type: string } & Record<string, unknown>;
type Response = { output: Item[] } & Record<string, unknown>;
type Event = {
  type: string;
  sequence_number: number;
  output_index?: number;
  item_id?: string;
  delta?: string;
  item?: Item;
  response?: Response;
};

const encode = (canonical: CanonicalReply, request: CanonicalRequest): Response =>
  JSON.parse(openaiResponses.encodeReply(canonical, request));

function eventsOf(stream: string): Event[] {
  return stream
    .split('\n\n')
    .filter((block) => block !== '')
    .map((block) => {
      const match = /^event: ([\w.]+)\ndata: ([^\n]*)$/.exec(block);
      const data = JSON.parse(match?.[2] ?? '') as Event;
      expect(data.type).toBe(match?.[1]);
      return data;
    });
}

const typesOf = (stream: string): string[] => eventsOf(stream).map(({ type }) => type.replace('response.', ''));

/** Returns the completed items of a stream. Codex adds exactly these items to its history. */
const doneItems = (events: readonly Event[]): Item[] =>
  events.flatMap(({ type, item }) => (type === 'response.output_item.done' && item ? [item] : []));

const ITEMS: object[] = [
  {
    id: 'rs_cpl_1',
    type: 'reasoning',
    summary: [{ type: 'summary_text', text: 'Think é' }],
    encrypted_content: expect.any(String),
  },
  {
    id: 'msg_cpl_1',
    type: 'message',
    status: 'completed',
    role: 'assistant',
    content: [{ type: 'output_text', text: ' Text\u2028', annotations: [], logprobs: [] }],
  },
  { id: 'fc_cpl_1_0', type: 'function_call', status: 'completed', call_id: 'c1', name: 'f', arguments: '{"b": 1' },
  {
    id: 'fc_cpl_1_1',
    type: 'function_call',
    status: 'completed',
    call_id: 'c2',
    namespace: 'agents',
    name: 'spawn',
    arguments: '',
  },
  {
    id: 'ctc_cpl_1_2',
    type: 'custom_tool_call',
    status: 'completed',
    call_id: 'c3',
    name: 'patch',
    input: '*** "x"\n',
  },
  { id: 'fc_cpl_1_3', type: 'function_call', status: 'completed', call_id: 'c4', name: 'unknown', arguments: '{}' },
];

describe('a reply', () => {
  it('contains items for thinking, text and calls as the tools were declared', () => {
    const response = encode(
      reply(),
      parse({ ...sealing, previous_response_id: 'resp_cpl_0', parallel_tool_calls: false, max_output_tokens: 9 }),
    );
    expect(response).toEqual({
      id: 'resp_cpl_1',
      object: 'response',
      created_at: 1,
      status: 'completed',
      error: null,
      incomplete_details: null,
      instructions: null,
      max_output_tokens: 9,
      metadata: {},
      model: 'asked',
      output: ITEMS,
      parallel_tool_calls: false,
      previous_response_id: 'resp_cpl_0',
      temperature: null,
      tool_choice: 'auto',
      tools: [],
      top_p: null,
      truncation: 'disabled',
      usage: {
        input_tokens: 10,
        input_tokens_details: { cached_tokens: 6 },
        output_tokens: 4,
        output_tokens_details: { reasoning_tokens: 0 },
        total_tokens: 14,
      },
    });
  });

  it('seals the thinking only when the client requested it', () => {
    expect(encode(reply(), parse()).output[0]).not.toHaveProperty('encrypted_content');
    const [sealed] = encode(reply(), parse(sealing)).output;
    expect(
      openaiResponses.parseRequest({ model: 'm', input: [{ ...sealed, summary: [] }] }, plainContext()).messages,
    ).toEqual([{ role: 'assistant', content: '', reasoning_content: 'Think é' }]);
  });

  it.each([
    [
      { type: 'function', name: 'f' },
      { type: 'function', name: 'f' },
    ],
    [
      { type: 'custom', name: 'patch' },
      { type: 'custom', name: 'patch' },
    ],
    ['required', 'required'],
  ])('repeats the tool choice %j', (tool_choice, expected) => {
    expect(encode(reply(), parse({ tool_choice })).tool_choice).toEqual(expected);
  });

  it.each([
    ['[1]', '[1]'],
    ['{"input": 5}', '{"input": 5}'],
    ['{"inp', '{"inp'],
    ['', ''],
    ['{"input":"x","more":1}', 'x'],
  ])('decodes the arguments %j of a custom tool to the input %j', (args, input) => {
    const message: AssistantMessage = {
      role: 'assistant',
      content: null,
      tool_calls: [callOf('c', 'agents__exec', args)],
    };
    const expected = { type: 'custom_tool_call', call_id: 'c', namespace: 'agents', name: 'exec', input };
    expect(encode(reply({ message }), parse()).output).toMatchObject([expected]);
    const { body, end } = streamOf(openaiResponses, reply({ message }), parse());
    expect(doneItems(eventsOf(body + end))).toMatchObject([expected]);
  });

  it.each<[AssistantMessage, (string | undefined)[]]>([
    [{ role: 'assistant', content: 'x' }, ['incomplete']],
    [
      { role: 'assistant', content: 'x', tool_calls: [callOf('a', 'f', '{}'), callOf('b', 'f', '{"')] },
      ['completed', 'completed', 'incomplete'],
    ],
    [{ role: 'assistant', content: '', reasoning_content: 'x' }, [undefined]],
  ])('is incomplete, as is its last item, when it was truncated: %j', (message, statuses) => {
    const cut = reply({ message, finishReason: 'length' });
    const response = encode(cut, parse());
    expect(response).toMatchObject({ status: 'incomplete', incomplete_details: { reason: 'max_output_tokens' } });
    expect(response.output.map(({ status }) => status)).toEqual(statuses);
    const { body, end } = streamOf(openaiResponses, cut, parse());
    const events = eventsOf(body + end);
    expect(events.at(-1)?.type).toBe('response.incomplete');
    expect(doneItems(events)).toEqual(response.output);
  });
});

describe('a stream', () => {
  it('contains the events of each item in order, numbered, with the index of the item', () => {
    const { body, end } = streamOf(openaiResponses, reply(), parse(sealing));
    expect(typesOf(body)).toEqual([
      ...['created', 'in_progress'],
      ...['output_item.added', 'reasoning_summary_part.added', 'reasoning_summary_text.delta'],
      ...['reasoning_summary_text.done', 'reasoning_summary_part.done', 'output_item.done'],
      ...['output_item.added', 'content_part.added', 'output_text.delta'],
      ...['output_text.done', 'content_part.done', 'output_item.done'],
      ...['output_item.added', 'function_call_arguments.delta'],
    ]);
    expect(typesOf(end)).toEqual([
      ...['function_call_arguments.done', 'output_item.done'],
      ...['output_item.added', 'function_call_arguments.done', 'output_item.done'],
      ...['output_item.added', 'custom_tool_call_input.delta', 'custom_tool_call_input.done', 'output_item.done'],
      ...['output_item.added', 'function_call_arguments.delta', 'function_call_arguments.done', 'output_item.done'],
      'completed',
    ]);
    const events = eventsOf(body + end);
    expect(events.map((event) => event.sequence_number)).toEqual(events.map((_, index) => index));
    expect(doneItems(events)).toEqual(ITEMS);
    const ids = ITEMS.map((item) => (item as Item).id);
    for (const { output_index: index, item_id, item } of events) {
      if (index !== undefined) expect(item_id ?? item?.id).toBe(ids[index]);
    }
  });

  it('holds back the end of the first call and everything after it until the end', () => {
    const stream = openaiResponses.openStream(reply(), parse());
    const deltas: ReplyDelta[] = [
      { kind: 'call', index: 0, id: 'c1', name: 'f' },
      { kind: 'arguments', index: 0, text: '{' },
      { kind: 'arguments', index: 0, text: '}' },
      { kind: 'call', index: 1, id: 'c2', name: 'f' },
      { kind: 'arguments', index: 1, text: '{}' },
    ];
    const sent = stream.start() + deltas.map((delta) => stream.delta(delta)).join('');
    const message: AssistantMessage = {
      role: 'assistant',
      content: null,
      tool_calls: [callOf('c1', 'f', '{}'), callOf('c2', 'f', '{}')],
    };
    const { body, end } = stream.end(reply({ message }));
    expect(typesOf(sent + body).slice(2)).toEqual([
      'output_item.added',
      'function_call_arguments.delta',
      'function_call_arguments.delta',
    ]);
    expect(doneItems(eventsOf(end)).map(({ call_id }) => call_id)).toEqual(['c1', 'c2']);
    expect(eventsOf(end).map((event) => event.sequence_number)).toEqual([5, 6, 7, 8, 9, 10, 11]);
  });

  it('contains one message without text when the reply is empty', () => {
    const nothing = reply({ message: { role: 'assistant', content: '' }, finishReason: 'stop' });
    const { body, end } = streamOf(openaiResponses, nothing, parse());
    const events = eventsOf(body + end);
    expect(events.filter(({ delta }) => delta !== undefined)).toEqual([]);
    expect(doneItems(events)).toEqual(encode(nothing, parse()).output);
    expect(doneItems(events)).toHaveLength(1);
  });

  it('has a heartbeat event with a type', () => {
    expect(openaiResponses.streamType(parse())).toContain('text/event-stream');
    const stream = openaiResponses.openStream(reply(), parse());
    stream.start();
    expect(eventsOf(stream.heartbeat())).toEqual([{ type: 'keepalive', sequence_number: 2 }]);
  });
});

describe('a compaction', () => {
  it('is one item, also in a stream, from which the summary is decoded', () => {
    const message: AssistantMessage = { role: 'assistant', content: 'State: é', reasoning_content: 'hm' };
    const summary = reply({ message, finishReason: 'stop' });
    const request = parse(compacting);
    const { output } = encode(summary, request);
    expect(output).toEqual([{ id: 'cmp_cpl_1', type: 'compaction', encrypted_content: expect.any(String) }]);
    const { body, end } = streamOf(openaiResponses, summary, request);
    expect(typesOf(body)).toEqual(['created', 'in_progress', 'output_item.added', 'output_item.done']);
    expect(typesOf(end)).toEqual(['completed']);
    expect(doneItems(eventsOf(body))).toEqual(output);
    expect(eventsOf(end)[0]?.response?.output).toEqual(output);
    const [back] = parse({ input: output }).messages;
    expect(back?.role).toBe('user');
    expect(back?.content).toContain('State: é');
  });

  it('is an ordinary reply when the harness requests it with its own prompt', () => {
    const words = parse(compacting).messages.at(-1)?.content;
    expect(encode(reply(), parse({ input: words })).output).toHaveLength(ITEMS.length);
  });
});

const text = fc.string({ unit: 'grapheme', maxLength: 12 });
const anyCall = fc.oneof(
  fc.record({ name: fc.constantFrom('f', 'agents__spawn', 'unknown', '__proto__'), args: text }),
  fc.record({ name: fc.constantFrom('patch', 'agents__exec'), args: text.map((input) => JSON.stringify({ input })) }),
);
const message: fc.Arbitrary<AssistantMessage> = fc
  .record({ content: text, thinking: text, calls: fc.array(anyCall, { maxLength: 4 }) })
  .map(({ content, thinking, calls }) => ({
    role: 'assistant',
    content: content === '' && calls.length > 0 ? null : content,
    ...(thinking === '' ? {} : { reasoning_content: thinking }),
    ...(calls.length === 0
      ? {}
      : { tool_calls: calls.map(({ name, args }, index) => callOf(`c${index}`, name, args)) }),
  }));

/** Generates the deltas of a message, in which every text is split into pieces of up to three characters. */
function* deltasOf({
  content,
  reasoning_content: thinking,
  tool_calls: calls = [],
}: AssistantMessage): Generator<ReplyDelta> {
  for (const piece of thinking?.match(/[\s\S]{1,3}/g) ?? []) yield { kind: 'reasoning', text: piece };
  for (const piece of content?.match(/[\s\S]{1,3}/g) ?? []) yield { kind: 'text', text: piece };
  for (const [index, call] of calls.entries()) {
    yield { kind: 'call', index, id: call.id, name: call.function.name };
    for (const piece of call.function.arguments.match(/[\s\S]{1,3}/g) ?? [])
      yield { kind: 'arguments', index, text: piece };
  }
}

/** The ways in which clients change the items of a reply before they return them with the next request. */
const clients: [string, (item: Item) => object][] = [
  ['as they are', (item) => item],
  ['without ids', ({ id: _, ...item }) => item],
  ['with ids of its own', (item) => ({ ...item, id: `${item.type}_own` })],
  ['without summaries', (item) => (item.type === 'reasoning' ? { ...item, summary: [] } : item)],
  ['without status', ({ status: _, ...item }) => item],
];

describe.each(clients)('a reply that a client returns with items %s', (_, change) => {
  it('is translated back to the same canonical message, streamed or not, between similar messages', () => {
    const request = parse(sealing);
    fc.assert(
      fc.property(message, fc.constantFrom('stop', 'length'), (canonical, finishReason) => {
        const first = reply({ message: canonical, finishReason });
        const whole = encode(first, request);
        const stream = openaiResponses.openStream(first, request);
        let sent = stream.start();
        for (const delta of deltasOf(canonical)) sent += stream.delta(delta);
        const { body, end } = stream.end(first);
        const events = eventsOf(sent + body + end);
        expect(doneItems(events)).toEqual(whole.output);
        expect(events.at(-1)?.response).toEqual(whole);
        const items = whole.output.map(change);
        const outputs = (canonical.tool_calls ?? []).map(({ id }) => ({
          type: 'function_call_output',
          call_id: id,
          output: 'ok',
        }));
        const input = [{ role: 'user', content: 'a' }, ...items, ...outputs, { role: 'user', content: 'b' }, ...items];
        const turns = parse({ input }).messages.filter(({ role }) => role === 'assistant');
        expect(turns).toEqual([canonical, canonical]);
      }),
      { numRuns: 300 },
    );
  });
});

it('two consecutive replies stay two messages', () => {
  const one = encode(reply({ message: { role: 'assistant', content: 'one' } }), parse()).output;
  const two = encode(
    reply({
      completionId: 'cpl_2',
      message: { role: 'assistant', content: null, tool_calls: [callOf('c', 'f', '{}')] },
    }),
    parse(),
  ).output;
  expect(parse({ input: [...one, ...two] }).messages).toHaveLength(2);
});

describe('an error', () => {
  it.each([
    ['schema_violation', 400, 'invalid_request_error'],
    ['unauthorized', 401, 'authentication_error'],
    ['session_closed', 410, 'invalid_request_error'],
    ['overloaded', 429, 'rate_limit_error'],
    ['engine_error', 502, 'server_error'],
  ] as const)('%s has the status %d and the type %s', (code, status, type) => {
    const encoded = openaiResponses.encodeError(new FloeError(code, 'why'));
    expect(encoded.status).toBe(status);
    expect(JSON.parse(encoded.body)).toEqual({ error: { message: 'why', type, param: null, code } });
  });

  it('has the code that clients expect for an overlong prompt', () => {
    const error = new FloeError('engine_rejected', 'maximum context length is 5', { context_overflow: true });
    expect(JSON.parse(openaiResponses.encodeError(error).body).error.code).toBe('context_length_exceeded');
    const failed = eventsOf(openaiResponses.openStream(reply(), parse()).fail(error)).at(-1);
    expect(failed?.response).toMatchObject({
      status: 'failed',
      error: { code: 'context_length_exceeded', message: 'maximum context length is 5' },
    });
  });

  it.each([
    ['engine_error', 'server_error'],
    ['engine_unavailable', 'server_error'],
    ['overloaded', 'rate_limit_exceeded'],
    ['session_closed', 'invalid_prompt'],
  ] as const)('%s is sent as two events in a stream, with the code %s', (code, expected) => {
    const stream = openaiResponses.openStream(reply(), parse());
    const [error, failed] = eventsOf(stream.start() + stream.fail(new FloeError(code, 'why'))).slice(2);
    expect(error).toEqual({
      type: 'error',
      sequence_number: expect.any(Number),
      code: expected,
      message: 'why',
      param: null,
    });
    expect(failed?.type).toBe('response.failed');
    expect(failed?.response).toMatchObject({
      object: 'response',
      model: 'asked',
      output: [],
      error: { code: expected, message: 'why' },
    });
    expect(failed?.sequence_number).toBeGreaterThan(error?.sequence_number ?? Number.POSITIVE_INFINITY);
  });
});
