import { ERROR_TABLE, type ErrorCode, FloeError } from '@floe-rl/core';
import type { AssistantMessage } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { anthropic } from '../../src/dialects/anthropic/dialect.ts';
import { type CanonicalReply, type Dialect, plainContext } from '../../src/dialects/dialect.ts';
import { openaiChat } from '../../src/dialects/openai_chat/dialect.ts';
import { SentDeltas } from '../../src/dialects/reply-stream.ts';
import type { ReplyDelta } from '../../src/reply.ts';

/** Parses server-sent events as their standard requires: lines end in CR, LF or CRLF, and the data lines of one event are joined. */
function eventsIn(stream: string): { name: string | null; data: string }[] {
  const events: { name: string | null; data: string }[] = [];
  let name: string | null = null;
  let data: string[] = [];
  for (const line of stream.split(/\r\n|\r|\n/)) {
    if (line === '') {
      if (data.length > 0) events.push({ name, data: data.join('\n') });
      name = null;
      data = [];
      continue;
    }
    const [field, value = ''] = line.split(/: ?(.*)/s);
    if (field === 'event') name = value;
    else if (field === 'data') data.push(value);
    else throw new Error(`not a field: ${line}`);
  }
  return events;
}

type Piece = { readonly kind: 'reasoning' | 'text' | 'call' | 'arguments'; readonly at: number; readonly text: string };

/**
 * Functions by dialect name. Each reads a stream of its dialect as a client does and returns its pieces of text, thinking and tool calls in
 * order.
 */
const READERS: Record<string, (stream: string) => Piece[]> = {
  openai_chat: (stream) =>
    eventsIn(stream)
      .filter(({ data }) => data !== '[DONE]')
      .flatMap(({ data }) => {
        const { delta } = JSON.parse(data).choices[0] ?? { delta: {} };
        const call = delta.tool_calls?.[0];
        return [
          ...(delta.reasoning_content ? [{ kind: 'reasoning' as const, at: 0, text: delta.reasoning_content }] : []),
          ...(delta.content ? [{ kind: 'text' as const, at: 0, text: delta.content }] : []),
          ...(call?.id ? [{ kind: 'call' as const, at: call.index, text: `${call.id} ${call.function.name}` }] : []),
          ...(call?.function.arguments
            ? [{ kind: 'arguments' as const, at: call.index, text: call.function.arguments }]
            : []),
        ];
      }),
  anthropic: (stream) => {
    let at = -1;
    return eventsIn(stream).flatMap(({ data }): Piece[] => {
      const { delta = {}, content_block: block = {} } = JSON.parse(data);
      if (block.type === 'tool_use') return [{ kind: 'call', at: ++at, text: `${block.id} ${block.name}` }];
      if (delta.thinking) return [{ kind: 'reasoning', at: 0, text: delta.thinking }];
      if (delta.text) return [{ kind: 'text', at: 0, text: delta.text }];
      return delta.partial_json ? [{ kind: 'arguments', at, text: delta.partial_json }] : [];
    });
  },
};

const nasty = fc.oneof(
  fc.string({ unit: 'binary' }),
  fc.string(),
  fc.constantFrom(
    '\n\ndata: {"x":1}\n\n',
    '\u2028\u2029',
    '\ud800',
    '\udc00a',
    'event: error\r\n\r\n',
    ': x',
    '\0',
    '😀',
  ),
);
const pieces = fc.array(
  nasty.filter((piece) => piece !== ''),
  { maxLength: 4 },
);
const drawnReply = fc.record({
  reasoning: pieces,
  text: pieces,
  calls: fc.array(fc.record({ id: fc.uuid(), name: fc.constantFrom('f', 'g'), arguments: pieces }), { maxLength: 3 }),
});

function deltasOf(drawn: typeof drawnReply extends fc.Arbitrary<infer T> ? T : never): ReplyDelta[] {
  return [
    ...drawn.reasoning.map((text): ReplyDelta => ({ kind: 'reasoning', text })),
    ...drawn.text.map((text): ReplyDelta => ({ kind: 'text', text })),
    ...drawn.calls.flatMap(({ id, name, arguments: texts }, index): ReplyDelta[] => [
      { kind: 'call', index, id, name },
      ...texts.map((text): ReplyDelta => ({ kind: 'arguments', index, text })),
    ]),
  ];
}

function messageOf(deltas: readonly ReplyDelta[]): AssistantMessage {
  const texts = { reasoning: '', text: '' };
  const calls: { id: string; type: 'function'; function: { name: string; arguments: string } }[] = [];
  for (const delta of deltas) {
    if (delta.kind === 'call') {
      calls.push({ id: delta.id, type: 'function', function: { name: delta.name, arguments: '' } });
    } else if (delta.kind === 'arguments') {
      const call = calls[delta.index];
      if (call) call.function.arguments += delta.text;
    } else {
      texts[delta.kind] += delta.text;
    }
  }
  return {
    role: 'assistant',
    content: texts.text,
    ...(texts.reasoning === '' ? {} : { reasoning_content: texts.reasoning }),
    ...(calls.length === 0 ? {} : { tool_calls: calls }),
  };
}

/** Joins adjacent pieces that belong to the same text, thinking or tool call. */
function joined(list: readonly Piece[]): Piece[] {
  const out: Piece[] = [];
  for (const piece of list) {
    const last = out.at(-1);
    if (last && last.kind === piece.kind && last.at === piece.at && piece.kind !== 'call') {
      out[out.length - 1] = { ...last, text: last.text + piece.text };
    } else {
      out.push(piece);
    }
  }
  return out;
}

const asPiece = (delta: ReplyDelta): Piece => {
  if (delta.kind === 'call') return { kind: 'call', at: delta.index, text: `${delta.id} ${delta.name}` };
  return { kind: delta.kind, at: delta.kind === 'arguments' ? delta.index : 0, text: delta.text };
};

const head = { completionId: 'cpl_1', model: 'm', promptTokens: 1, createdMs: 0 };
const replyOf = (message: AssistantMessage): CanonicalReply => ({
  ...head,
  message,
  finishReason: 'stop',
  stopText: null,
  usage: { prompt_tokens: 1, completion_tokens: 1, cached_tokens: null },
});
const requestFor = (dialect: Dialect) =>
  dialect.parseRequest({ model: 'm', max_tokens: 9, messages: [{ role: 'user', content: 'hi' }] }, plainContext());

describe.each([anthropic, openaiChat].map((dialect) => [dialect.name, dialect] as const))('%s', (name, dialect) => {
  it('streams thinking, text and calls in order, whatever their text is and however it is split', () => {
    fc.assert(
      fc.property(drawnReply, fc.nat(12), (drawn, relayed) => {
        const deltas = deltasOf(drawn);
        const message = messageOf(deltas);
        const stream = dialect.openStream(head, requestFor(dialect));
        const sent = new SentDeltas();
        let text = stream.start();
        // Only the first `relayed` deltas are streamed one by one. The others are computed from the complete message at the end.
        for (const delta of deltas.slice(0, relayed)) {
          sent.add(delta);
          text += stream.delta(delta);
        }
        for (const delta of sent.missingFrom(message)) text += stream.delta(delta);
        const { body, end } = stream.end(replyOf(message));
        expect(joined(READERS[name]?.(text + body + end) ?? [])).toEqual(joined(deltas.map(asPiece)));
      }),
      { numRuns: 1_000 },
    );
  });

  it('streams thinking between texts', () => {
    const deltas: ReplyDelta[] = [
      { kind: 'text', text: 'a' },
      { kind: 'reasoning', text: 'b' },
      { kind: 'text', text: 'c' },
    ];
    const stream = dialect.openStream(head, requestFor(dialect));
    const text = stream.start() + deltas.map((delta) => stream.delta(delta)).join('');
    expect(READERS[name]?.(text)).toEqual(deltas.map(asPiece));
  });

  it.each(Object.keys(ERROR_TABLE) as ErrorCode[])(
    'encodes the error %s in its form, alone and inside a stream',
    (code) => {
      const error = new FloeError(code, 'why\n\ndata: {}\n\n');
      const { status, body } = dialect.encodeError(error);
      expect(status).toBe(error.status === 422 ? 400 : error.status);
      const [inStream, ...others] = eventsIn(dialect.openStream(head, requestFor(dialect)).fail(error));
      const shape = { message: error.message, type: expect.stringMatching(/^[a-z_]+_error$|^request_too_large$/) };
      const expected =
        name === 'anthropic' ? { type: 'error', error: shape } : { error: { ...shape, param: null, code } };
      expect(JSON.parse(body)).toEqual(expected);
      const own = name === 'anthropic' ? {} : { id: 'cpl_1', object: 'chat.completion.chunk', created: 0, model: 'm' };
      expect(JSON.parse(inStream?.data ?? '')).toEqual({ ...own, ...expected });
      expect([inStream?.name, others.map(({ data }) => data)]).toEqual(
        name === 'anthropic' ? ['error', []] : [null, ['[DONE]']],
      );
    },
  );
});

describe('a stream of the chat dialect', () => {
  /** Returns the pieces, separated by `|`, that a client receives for these deltas before the end of the stream. */
  const early = (...deltas: ReplyDelta[]): string => {
    const stream = openaiChat.openStream(head, requestFor(openaiChat));
    const text = stream.start() + deltas.map((delta) => stream.delta(delta)).join('');
    return (READERS.openai_chat?.(text) ?? []).map((piece) => piece.text).join('|');
  };
  const begin = (index: number): ReplyDelta => ({ kind: 'call', index, id: `c${index}`, name: 'f' });
  const piece = (index: number, text: string): ReplyDelta => ({ kind: 'arguments', index, text });

  it.each<[string, string[], string]>([
    ['an object', ['{"a"', ':{}', '}', '\n'], '{"a"|:{}'],
    ['an object in one piece', [' {"a":"}\\"}"} '], ' {"a":"}\\"}"'],
    ['a list', ['[', '[1]', ',', '"\\', '"]"]'], '[|[1]|,|"\\|"]"'],
    ['a number', ['4', '2'], ''],
    ['text that is not JSON', ['run', ' {}'], ''],
    ['a truncated object', ['{"a":"'], '{"a":"'],
  ])('never contains a complete call before its end: %s', (_, texts, expected) => {
    const sent = early(begin(0), ...texts.map((text) => piece(0, text)));
    expect(sent).toBe(['c0 f', expected].filter(Boolean).join('|'));
    // The beginning of a second tool call would also let a client run the first call, so it must not be sent before the end either.
    expect(early(begin(0), ...texts.map((text) => piece(0, text)), begin(1), piece(1, '{"b"'))).toBe(sent);
  });
});

describe('the missing deltas of a reply', () => {
  const callOf = (id: string, text: string) => ({
    id,
    type: 'function' as const,
    function: { name: 'f', arguments: text },
  });
  const begun = (...deltas: ReplyDelta[]): SentDeltas => {
    const sent = new SentDeltas();
    for (const delta of deltas) sent.add(delta);
    return sent;
  };

  it('start with those of the open call, which later text would close', () => {
    const sent = begun({ kind: 'call', index: 0, id: 'c', name: 'f' }, { kind: 'arguments', index: 0, text: '{"a"' });
    const message = { role: 'assistant' as const, content: 'after', tool_calls: [callOf('c', '{"a":1}')] };
    expect(sent.missingFrom(message)).toEqual([
      { kind: 'arguments', index: 0, text: ':1}' },
      { kind: 'text', text: 'after' },
    ]);
  });

  it('are an engine error when a closed call has grown', () => {
    const sent = begun(
      { kind: 'call', index: 0, id: 'c', name: 'f' },
      { kind: 'arguments', index: 0, text: '{"a"' },
      { kind: 'call', index: 1, id: 'd', name: 'f' },
    );
    const message = {
      role: 'assistant' as const,
      content: null,
      tool_calls: [callOf('c', '{"a":1}'), callOf('d', '{}')],
    };
    expect(() => sent.missingFrom(message)).toThrow('continued a tool call after the next one had begun');
  });

  it.each<[string, ReplyDelta[]]>([
    ['thinking', [{ kind: 'reasoning', text: 'more than there is' }]],
    ['text', [{ kind: 'text', text: 'more than there is' }]],
    ['calls', [{ kind: 'call', index: 1, id: 'c', name: 'f' }]],
    ['arguments', [{ kind: 'arguments', index: 0, text: '{"much": "longer"}' }]],
  ])('are an engine error when more %s was streamed than the reply contains', (_, deltas) => {
    const sent = new SentDeltas();
    for (const delta of deltas) sent.add(delta);
    const call = { id: 'c', type: 'function' as const, function: { name: 'f', arguments: '{}' } };
    const message = { role: 'assistant' as const, content: 'a', reasoning_content: 'b', tool_calls: [call] };
    expect(() => sent.missingFrom(message)).toThrow('streamed more than its reply holds');
  });
});
