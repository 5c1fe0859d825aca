import { FloeError } from '@floe-rl/core';
import type { AssistantMessage, CallKind } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  type CallContext,
  type CanonicalReply,
  type CanonicalRequest,
  plainContext,
  type RecordedReply,
} from '../../../src/dialects/dialect.ts';
import { openaiResponses } from '../../../src/dialects/openai_responses/dialect.ts';
import { streamOf } from '../whole-stream.ts';

type Item = { readonly type: string; readonly id: string };

const canonicalCall = (id: string, args = '{ "x":1 }', name = 'f') => ({
  id,
  type: 'function' as const,
  function: { name, arguments: args },
});
const message = (over: Partial<AssistantMessage>): AssistantMessage => ({ role: 'assistant', content: null, ...over });

const FULL = message({
  content: '\n\nLook.',
  reasoning_content: 'Hm.\n',
  tool_calls: [canonicalCall('a'), canonicalCall('b', '{"cut')],
});
const PLAIN = message({ content: 'Hello.' });
const EMPTY = message({ content: '' });
const THOUGHT = message({ content: '', reasoning_content: 'Hm.' });
const SUMMARY = message({ content: 'The state.' });

const REPLIES: Readonly<Record<string, RecordedReply>> = {
  cpl_full: { message: FULL, callKind: 'main' },
  cpl_plain: { message: PLAIN, callKind: 'main' },
  cpl_empty: { message: EMPTY, callKind: 'main' },
  cpl_thought: { message: THOUGHT, callKind: 'main' },
  cpl_summary: { message: SUMMARY, callKind: 'compaction' },
};

const session = (replies: Readonly<Record<string, RecordedReply>> = REPLIES): CallContext => ({
  ...plainContext(),
  recorded: (id) => (Object.hasOwn(replies, id) ? (replies[id] ?? null) : null),
});
const parse = (input: readonly object[], over: object = {}, context = session()): CanonicalRequest =>
  openaiResponses.parseRequest({ model: 'm', input, ...over }, context);
const ref = (id: string) => ({ type: 'item_reference', id });
const refs = (...ids: string[]) => ids.map(ref);
const user = (content: string) => ({ role: 'user', content });
const output = (callId: string) => ({ type: 'function_call_output', call_id: callId, output: 'ok' });
const result = (callId: string) => ({ role: 'tool', tool_call_id: callId, content: 'ok' });

const refusalOf = (input: readonly object[], over: object = {}, context = session()): FloeError => {
  try {
    parse(input, over, context);
  } catch (error) {
    if (FloeError.is(error)) return error;
    throw error;
  }
  throw new Error('was accepted');
};

describe('references to all items of a reply', () => {
  it('are resolved to the recorded reply, and its results are paired with its calls', () => {
    const input = [
      user('x'),
      ...refs('rs_cpl_full', 'msg_cpl_full', 'fc_cpl_full_0', 'fc_cpl_full_1'),
      output('a'),
      output('b'),
      user('y'),
    ];
    const request = parse(input);
    expect(request.messages).toEqual([user('x'), FULL, result('a'), result('b'), user('y')]);
    expect(JSON.stringify(request.messages[1])).toBe(JSON.stringify(FULL));
    expect(request.adjusted).toEqual([]);
  });

  it('form one assistant message even with results between them, and end at the next reply', () => {
    const input = [
      ref('fc_cpl_full_0'),
      output('a'),
      ref('ctc_cpl_full_1'),
      output('b'),
      ...refs('msg_cpl_plain', 'rs_cpl_thought'),
    ];
    expect(parse(input).messages).toEqual([
      message({ tool_calls: FULL.tool_calls }),
      result('a'),
      result('b'),
      PLAIN,
      THOUGHT,
    ]);
  });

  const text = fc.string({ unit: 'binary', maxLength: 8 });
  type Form = {
    readonly content: string | null;
    readonly thinking: string;
    readonly names: string[];
    readonly args: string;
  };
  const reply = fc.record({
    content: fc.option(text),
    thinking: text,
    names: fc.array(fc.constantFrom('f', 'c', 'n__g'), { maxLength: 3 }),
    args: text,
    stream: fc.boolean(),
  });
  const tools = [
    { type: 'function', name: 'f' },
    { type: 'custom', name: 'c' },
    { type: 'namespace', name: 'n', tools: [{ type: 'function', name: 'g' }] },
  ];

  /** Makes an assistant message in the form that engines return: empty content is `null` if the message has tool calls. */
  function recordedOf({ content, thinking, names, args }: Form): AssistantMessage {
    return {
      role: 'assistant',
      content: names.length === 0 ? (content ?? '') : content || null,
      ...(thinking === '' ? {} : { reasoning_content: thinking }),
      ...(names.length === 0 ? {} : { tool_calls: names.map((name, i) => canonicalCall(`call_${i}`, args, name)) }),
    };
  }

  function itemsOf(answer: AssistantMessage, stream: boolean): Item[] {
    const asked = parse([user('x')], { tools });
    const whole: CanonicalReply = {
      ...{ completionId: 'cpl_1', model: 'm', createdMs: 0, promptTokens: 1, message: answer },
      ...{ finishReason: 'stop', stopText: null },
      usage: { prompt_tokens: 1, completion_tokens: 1, cached_tokens: null },
    };
    if (!stream) return JSON.parse(openaiResponses.encodeReply(whole, asked)).output;
    const { body, end } = streamOf(openaiResponses, whole, asked);
    return [...(body + end).matchAll(/^data: (.*)$/gm)]
      .map(([, data]) => JSON.parse(data ?? ''))
      .flatMap(({ type, item }) => (type === 'response.output_item.done' ? [item] : []));
  }

  it('give the same message for every reply, streamed or not, as the items themselves', () => {
    fc.assert(
      fc.property(reply, fc.array(fc.boolean(), { minLength: 5, maxLength: 5 }), (form, keep) => {
        const answer = recordedOf(form);
        const items = itemsOf(answer, form.stream);
        const context = session({ cpl_1: { message: answer, callKind: 'main' } });
        const named = (chosen: Item[]) => parse([user('x'), ...chosen.map(({ id }) => ref(id))], { tools }, context);
        expect(named(items).messages).toEqual([user('x'), answer]);
        const some = items.filter((_, i) => keep[i]);
        const { messages } = named(some);
        const sent = parse([user('x'), ...some], { tools }).messages;
        // The messages are not compared if a custom tool was called: an item contains only its free-text input, so the exact form of the
        // sampled arguments is lost.
        if (!some.some(({ type }) => type === 'custom_tool_call')) expect(messages).toEqual(sent);
        expect(messages).toHaveLength(some.length === 0 ? 1 : 2);
      }),
      { numRuns: 500 },
    );
  });
});

describe('references to some items of a reply', () => {
  it('are grouped by reply, in any order', () => {
    expect(parse(refs('rs_cpl_thought', 'rs_cpl_full', 'fc_cpl_full_0', 'msg_cpl_full')).messages).toEqual([
      THOUGHT,
      { ...FULL, tool_calls: [canonicalCall('a')] },
    ]);
    expect(parse(refs('msg_cpl_full', 'rs_cpl_full')).messages).toEqual([
      message({ content: '\n\nLook.', reasoning_content: 'Hm.\n' }),
    ]);
  });

  it.each<[string[], AssistantMessage]>([
    [
      ['msg_cpl_full', 'fc_cpl_full_0', 'fc_cpl_full_1'],
      message({ content: '\n\nLook.', tool_calls: FULL.tool_calls }),
    ],
    [['rs_cpl_full'], message({ content: '', reasoning_content: 'Hm.\n' })],
    [['msg_cpl_full'], message({ content: '\n\nLook.' })],
    [['fc_cpl_full_1'], message({ tool_calls: [canonicalCall('b', '{"cut')] })],
    [['msg_cpl_empty'], EMPTY],
  ])('give only these parts of it: %j', (ids, expected) => {
    expect(parse(refs(...ids)).messages).toEqual([expected]);
  });

  it('form one message with items that are sent, which are kept as sent', () => {
    const sent = { type: 'function_call', call_id: 'a', name: 'f', arguments: '{"x":1}' };
    const input = [...refs('rs_cpl_full', 'msg_cpl_full'), sent, { ...sent, call_id: 'b' }, output('a'), output('b')];
    expect(parse(input).messages).toEqual([
      { ...FULL, tool_calls: [canonicalCall('a', '{"x":1}'), canonicalCall('b', '{"x":1}')] },
      result('a'),
      result('b'),
    ]);
  });

  it('can be combined with previous_response_id', () => {
    const request = parse([...refs('msg_cpl_plain'), user('x')], { previous_response_id: 'resp_cpl_full' });
    expect(request).toMatchObject({ previousCompletionId: 'cpl_full', messages: [PLAIN, user('x')] });
  });

  it('may omit their type and occur in a count request', () => {
    const body = { input: [user('x'), { id: 'msg_cpl_plain' }, { type: null, id: 'rs_cpl_full' }] };
    expect(openaiResponses.parseCount(body, session()).messages).toEqual([
      user('x'),
      PLAIN,
      message({ content: '', reasoning_content: 'Hm.\n' }),
    ]);
  });

  it('are resolved to the summary of a compaction', () => {
    const messages = parse(refs('cmp_cpl_summary')).messages;
    expect(messages).toMatchObject([{ role: 'user', content: expect.stringContaining('The state.') }]);
    const encrypted_content = `floe.summary.2.cpl_1.${Buffer.from('The state.').toString('base64url')}`;
    expect(parse([{ type: 'compaction', encrypted_content }]).messages).toEqual(messages);
  });
});

describe('a reference that cannot be resolved', () => {
  const foreign = [
    ...['rs_cpl_other', 'msg_1', 'rs_cpl_', 'cpl_full', 'resp_cpl_full', '', 'x'.repeat(1000)],
    ...['rs_cpl_plain', 'msg_cpl_thought', 'rs_cpl_empty', 'fc_cpl_plain_0', 'cmp_cpl_full'],
    ...['fc_cpl_full', 'fc_cpl_full_2', 'fc_cpl_full_00', 'fc_cpl_full_-1', 'fc_cpl_full_1e0', 'rs_cpl_full_0'],
    ...['ws_cpl_full', '__proto___cpl_full', 'rs_cpl_full\n', ' rs_cpl_full', 'RS_cpl_full', 'rs_constructor'],
  ];
  it.each(foreign)('is refused with the path of the field: %j', (id) => {
    const error = refusalOf([user('x'), ref(id)]);
    expect(error.code).toBe('schema_violation');
    expect(error.message).toContain('responses request: input.1.id: no item "');
    expect(error.message.length).toBeLessThan(200);
    expect(error.details.issues).toMatchObject([{ path: 'input.1.id' }]);
    expect(openaiResponses.encodeError(error).status).toBe(400);
  });

  it('is refused when the session has no replies', () => {
    expect(refusalOf(refs('rs_cpl_full'), {}, plainContext()).message).toContain('input.0.id: no item');
  });

  it.each<object>([{}, { type: 'item_reference' }, { type: 'item_reference', id: 5 }, { id: null }])(
    'is refused without an id: %j',
    (item) => {
      expect(refusalOf([user('x'), item])).toMatchObject({
        code: 'schema_violation',
        message: expect.stringContaining('input.1.id: '),
      });
    },
  );

  it('is refused when it occurs twice, so that a small request cannot multiply text', () => {
    for (const [first, second] of [
      ['msg_cpl_plain', 'msg_cpl_plain'],
      ['fc_cpl_full_0', 'ctc_cpl_full_0'],
    ] as const) {
      const error = refusalOf([ref(first), user('x'), ref(second)]);
      expect(error.code).toBe('schema_violation');
      expect(error.message).toContain('input.2.id: a second reference');
    }
  });
});

it.each<CallKind>(['main', 'compaction'])('a reply of the kind %s can be referenced', (callKind) => {
  const context = session({ cpl_1: { message: PLAIN, callKind } });
  expect(parse(refs('msg_cpl_1'), {}, context).messages).toEqual([PLAIN]);
});
