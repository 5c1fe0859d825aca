import { FloeError } from '@floe-rl/core';
import type { AssistantMessage } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type CanonicalReply, type CanonicalRequest, plainContext } from '../../../src/dialects/dialect.ts';
import { gemini } from '../../../src/dialects/gemini/dialect.ts';
import { SentDeltas } from '../../../src/dialects/reply-stream.ts';
import { streamOf } from '../whole-stream.ts';

const requestOf = (contents: object[], alt: string, stream = true): CanonicalRequest =>
  gemini.parseCount({ contents }, { ...plainContext(), query: new URLSearchParams({ alt }), model: 'm', stream });
const events = requestOf([{ parts: [{ text: 'hi' }] }], 'sse');
const array = requestOf([{ parts: [{ text: 'hi' }] }], 'json');
const whole = requestOf([{ parts: [{ text: 'hi' }] }], 'json', false);

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
    content: 'Text é\n',
    reasoning_content: 'Think',
    tool_calls: [callOf('c1', 'f', '{"b": 1,  "a":9007199254740993}'), callOf('c2', 'g', '{}')],
  },
  finishReason: 'tool_calls',
  stopText: null,
  usage: { prompt_tokens: 10, completion_tokens: 4, cached_tokens: 6 },
  ...over,
});
const replyOf = (message: Omit<AssistantMessage, 'role'>): CanonicalReply =>
  reply({ message: { role: 'assistant', ...message } });

type Part = { text?: string; thought?: boolean; thoughtSignature?: string; functionCall?: { id?: string } };
type Response = {
  candidates: [{ content: { role: string; parts: Part[] }; finishReason?: string; index: number }];
  usageMetadata?: object;
  modelVersion?: string;
  responseId?: string;
};

/** Splits a stream into events as Gemini CLI does: each event starts with `data: ` and ends with an empty line. */
function responsesIn(stream: string): Response[] {
  const responses: Response[] = [];
  let rest = stream;
  for (;;) {
    const match = /^\s*data: (.*)(?:\n\n|\r\r|\r\n\r\n)/.exec(rest);
    if (match === null) break;
    responses.push(JSON.parse(match[1] ?? ''));
    rest = rest.slice(match[0].length);
  }
  expect(rest).toBe('');
  return responses;
}

const streamed = (given: CanonicalReply, request: CanonicalRequest): Response[] => {
  const { body, end } = streamOf(gemini, given, request);
  return request.streamAsArray ? JSON.parse(body + end) : responsesIn(body + end);
};
const partsOf = (responses: readonly Response[]) => responses.flatMap(({ candidates }) => candidates[0].content.parts);
const encoded = (given: CanonicalReply): Response => JSON.parse(gemini.encodeReply(given, whole));

describe('a reply', () => {
  it('contains thinking, text and calls in order, the arguments as sampled, and the usage', () => {
    expect(gemini.encodeReply(reply(), whole)).toContain('"args":{"b": 1,  "a":9007199254740993}}');
    expect(encoded(reply())).toEqual({
      candidates: [
        {
          content: {
            parts: [
              { text: 'Think', thought: true },
              { text: 'Text é\n', thoughtSignature: Buffer.from('floe/th2:cpl_1:"Think"').toString('base64') },
              { functionCall: { id: 'c1', name: 'f', args: { b: 1, a: 9007199254740992 } } },
              { functionCall: { id: 'c2', name: 'g', args: {} } },
            ],
            role: 'model',
          },
          finishReason: 'STOP',
          index: 0,
        },
      ],
      usageMetadata: {
        promptTokenCount: 10,
        candidatesTokenCount: 4,
        cachedContentTokenCount: 6,
        totalTokenCount: 14,
      },
      modelVersion: 'asked',
      responseId: 'cpl_1',
    });
  });

  it('signs the first part after the thinking, or the first call when there is no thinking', () => {
    const signatures = (message: Omit<AssistantMessage, 'role'>) =>
      partsOf([encoded(replyOf(message))]).map(({ thoughtSignature }) => thoughtSignature !== undefined);
    const tool_calls = [callOf('a', 'f', '{}'), callOf('b', 'f', '{}')];
    expect(signatures({ content: null, reasoning_content: 'T', tool_calls })).toEqual([false, true, false]);
    expect(signatures({ content: 'x', reasoning_content: 'T', tool_calls })).toEqual([false, true, false, false]);
    expect(signatures({ content: 'x', tool_calls })).toEqual([false, true, false]);
    expect(signatures({ content: 'x' })).toEqual([false]);
    expect(partsOf([encoded(replyOf({ content: '', reasoning_content: 'T' }))])).toEqual([
      { text: 'T', thought: true },
      {
        text: '',
        thoughtSignature: expect.stringMatching(/^(?:[A-Za-z0-9+/]{4})+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/),
      },
    ]);
  });

  it.each([
    ['{"a":', { __unparsedToolInput: { raw: '{"a":', len: 5 } }],
    ['[1]', { __unparsedToolInput: { raw: '[1]', len: 3 } }],
    ['null', { __unparsedToolInput: { raw: 'null', len: 4 } }],
    [
      '{"__unparsedToolInput":{"raw":"x","len":1}}',
      { __unparsedToolInput: { raw: '{"__unparsedToolInput":{"raw":"x","len":1}}', len: 43 } },
    ],
    ['{"__unparsedToolInput":{"raw":"x","len":2}}', { __unparsedToolInput: { raw: 'x', len: 2 } }],
    [' ', {}],
  ])('wraps the arguments %j, which `args` cannot represent', (raw, args) => {
    const given = replyOf({ content: null, tool_calls: [callOf('c', 'f', raw)] });
    const [part] = partsOf([encoded(given)]);
    expect(part).toMatchObject({ functionCall: { id: 'c', name: 'f', args } });
    const [echo] = requestOf([{ role: 'model', parts: [part] }], 'sse').messages;
    const [back] = echo?.role === 'assistant' ? (echo.tool_calls ?? []) : [];
    expect(back?.function.arguments).toBe(raw.trim() === '' ? '{}' : raw);
  });

  it.each([
    ['stop', 'STOP'],
    ['tool_calls', 'STOP'],
    ['length', 'MAX_TOKENS'],
    ['abort', 'MAX_TOKENS'],
  ] as const)('translates the finish reason %s to %s', (finishReason, expected) => {
    expect(encoded(reply({ finishReason })).candidates[0].finishReason).toBe(expected);
    expect(streamed(reply({ finishReason }), events).at(-1)?.candidates[0].finishReason).toBe(expected);
  });

  it('contains an empty text when it is empty, so that clients keep it in their history', () => {
    const nothing = replyOf({ content: '' });
    expect(partsOf([encoded(nothing)])).toEqual([{ text: '' }]);
    expect(partsOf(streamed(nothing, events))).toEqual([{ text: '' }]);
  });

  it('omits the number of cached tokens when it is unknown', () => {
    const usage = { prompt_tokens: 1, completion_tokens: 2, cached_tokens: null };
    expect(encoded(reply({ usage })).usageMetadata).toEqual({
      promptTokenCount: 1,
      candidatesTokenCount: 2,
      totalTokenCount: 3,
    });
  });
});

describe('a stream', () => {
  it('sends text immediately and each call in one part, and the finish reason only at the end', () => {
    const stream = gemini.openStream(reply(), events);
    expect(stream.start()).toBe('');
    const sent = [
      stream.delta({ kind: 'reasoning', text: 'Thi' }),
      stream.delta({ kind: 'reasoning', text: 'nk' }),
      stream.delta({ kind: 'text', text: 'Text' }),
      stream.delta({ kind: 'text', text: ' é\n' }),
      stream.delta({ kind: 'call', index: 0, id: 'c1', name: 'f' }),
      stream.delta({ kind: 'arguments', index: 0, text: '{"b": 1,' }),
      stream.delta({ kind: 'arguments', index: 0, text: '  "a":9007199254740993}' }),
      stream.delta({ kind: 'call', index: 1, id: 'c2', name: 'g' }),
      stream.delta({ kind: 'arguments', index: 1, text: '{}' }),
    ].map(responsesIn);
    const thoughtSignature = Buffer.from('floe/th2:cpl_1:"Think"').toString('base64');
    expect(sent.map(partsOf)).toEqual([
      [{ text: 'Thi', thought: true }],
      [{ text: 'nk', thought: true }],
      [{ text: 'Text', thoughtSignature }],
      [{ text: ' é\n' }],
      [],
      [],
      [],
      [],
      [],
    ]);
    for (const { candidates, usageMetadata, modelVersion, responseId } of sent.flat()) {
      expect({ finish: candidates[0].finishReason, usageMetadata }).toEqual({});
      expect({ modelVersion, responseId, role: candidates[0].content.role }).toEqual({
        modelVersion: 'asked',
        responseId: 'cpl_1',
        role: 'model',
      });
    }
    const { body, end } = stream.end(reply());
    expect(body).toBe('');
    expect(partsOf(responsesIn(end).slice(0, 1))).toEqual([
      { functionCall: { id: 'c1', name: 'f', args: { b: 1, a: 9007199254740992 } } },
    ]);
    expect(responsesIn(end).slice(1)).toMatchObject([
      {
        candidates: [{ content: { parts: [{ functionCall: { id: 'c2' } }] }, finishReason: 'STOP' }],
        usageMetadata: { totalTokenCount: 14 },
      },
    ]);
  });

  it('is sent as an array in one piece that is JSON even after heartbeats', () => {
    const heartbeat = gemini.openStream(reply(), array).heartbeat();
    expect(gemini.streamType(array)).toMatch(/^application\/json/);
    const { body, end } = streamOf(gemini, reply(), array);
    expect(body).toBe('');
    expect(JSON.parse(heartbeat + heartbeat + end)).toEqual(streamed(reply(), events));
  });

  it('contains no line break inside an event, whatever was sampled', () => {
    const given = replyOf({
      content: 'a\u2028b\u2029c\n\ndata: x\r\n\r\n',
      tool_calls: [callOf('c', 'f', '{\n\n "a": "\u2028",\r\n\r\n "b": 1\r\r}')],
    });
    const { body, end } = streamOf(gemini, given, events);
    expect((body + end).split(/[\r\u2028\u2029]/)).toHaveLength(1);
    expect(partsOf(streamed(given, events))).toEqual(partsOf([encoded(given)]));
    expect(gemini.encodeReply(given, whole)).toContain('{\n\n "a": "\u2028",\r\n\r\n "b": 1\r\r}');
  });

  it('has heartbeats that are responses with an empty text instead of comments', () => {
    const heartbeat = gemini.openStream(reply(), events).heartbeat();
    expect(gemini.streamType(events)).toMatch(/^text\/event-stream/);
    expect(responsesIn(heartbeat + heartbeat).map(({ candidates }) => candidates)).toEqual(
      Array(2).fill([{ content: { parts: [{ text: '' }], role: 'model' }, index: 0 }]),
    );
  });
});

const unit = fc.oneof(fc.string({ unit: 'binary' }), fc.constantFrom('\n\n', '\u2028', 'data: {}', '"', '😀'));
const message: fc.Arbitrary<AssistantMessage> = fc
  .record({
    content: unit,
    thinking: unit,
    calls: fc.array(
      fc.record({
        name: fc.constantFrom('f', 'g', '__proto__'),
        args: fc.oneof(
          fc.dictionary(unit, fc.jsonValue()).map((value) => JSON.stringify(value, null, 1)),
          unit,
        ),
      }),
      { maxLength: 3 },
    ),
  })
  .map(({ content, thinking, calls }) => ({
    role: 'assistant',
    content: content === '' && calls.length > 0 ? null : content,
    ...(thinking === '' ? {} : { reasoning_content: thinking }),
    ...(calls.length === 0 ? {} : { tool_calls: calls.map(({ name, args }, i) => callOf(`call_x${i}`, name, args)) }),
  }));

/**
 * Returns the form in which a client is expected to return an assistant message. Tool-call arguments that are a JSON object become compact
 * JSON, and other arguments stay as sampled. `id` converts each call id.
 */
function normal(turn: AssistantMessage, id: (id: string, index: number) => string): AssistantMessage {
  if (turn.tool_calls === undefined) return turn;
  const compact = (raw: string): string => {
    if (raw.trim() === '') return '{}';
    try {
      const parsed: unknown = JSON.parse(raw);
      return typeof parsed === 'object' && parsed !== null && !Array.isArray(parsed) ? JSON.stringify(parsed) : raw;
    } catch {
      return raw;
    }
  };
  return {
    ...turn,
    tool_calls: turn.tool_calls.map((call, index) => ({
      ...call,
      id: id(call.id, index),
      function: { ...call.function, arguments: compact(call.function.arguments) },
    })),
  };
}

const CLIENTS: [string, (parts: Part[]) => Part[]][] = [
  ['keeps everything', (parts) => parts],
  ['drops thoughts', (parts) => parts.filter(({ thought }) => thought !== true)],
  ['drops ids', (parts) => parts.map((part) => (part.functionCall ? without(part) : part))],
  [
    'drops thoughts and ids',
    (parts) =>
      parts.filter(({ thought }) => thought !== true).map((part) => (part.functionCall ? without(part) : part)),
  ],
];

function without(part: Part): Part {
  const { id: _, ...functionCall } = part.functionCall ?? {};
  return { ...part, functionCall };
}

describe.each(CLIENTS)('a reply that a client returns, when the client %s', (name, change) => {
  const id = (given: string, index: number) => (name.includes('ids') ? `call_0_${index}` : given);

  it('is translated back to the same canonical message, streamed or not', () => {
    fc.assert(
      fc.property(message, (turn) => {
        const given = reply({ message: turn });
        for (const responses of [[encoded(given)], streamed(given, events), streamed(given, array)]) {
          // A JSON round trip stands for the transport to the client and for the history that the client stores.
          const parts: Part[] = JSON.parse(JSON.stringify(change(partsOf(responses))));
          expect(requestOf([{ role: 'model', parts }], 'sse').messages).toEqual([normal(turn, id)]);
        }
      }),
      { numRuns: 500 },
    );
  });
});

it('streams as events and as an array contain the same as the whole reply, however the deltas are split', () => {
  /** Returns the contents of a reply, with adjacent pieces of text and of thinking joined. */
  const shown = (responses: readonly Response[]) => {
    const parts = partsOf(responses);
    const join = (thought: boolean) =>
      parts
        .filter((part) => (part.thought ?? false) === thought)
        .map(({ text }) => text ?? '')
        .join('');
    return {
      thinking: join(true),
      text: join(false),
      calls: parts.filter(({ functionCall }) => functionCall),
      signatures: parts.flatMap(({ thoughtSignature }) => thoughtSignature ?? []),
      finish: responses.at(-1)?.candidates[0].finishReason,
      usage: responses.at(-1)?.usageMetadata,
    };
  };
  fc.assert(
    fc.property(message, fc.integer({ min: 1, max: 5 }), (turn, size) => {
      const given = reply({ message: turn });
      const expected = shown([encoded(given)]);
      for (const request of [events, array]) {
        const stream = gemini.openStream(given, request);
        let sent = stream.start();
        for (const delta of new SentDeltas().missingFrom(turn)) {
          if (delta.kind === 'call') sent += stream.delta(delta);
          else {
            for (let at = 0; at < delta.text.length; at += size) {
              sent += stream.delta({ ...delta, text: delta.text.slice(at, at + size) });
            }
          }
        }
        const { body, end } = stream.end(given);
        sent += body + end;
        expect(shown(request.streamAsArray ? JSON.parse(sent) : responsesIn(sent))).toEqual(expected);
      }
    }),
    { numRuns: 300 },
  );
});

describe('an error', () => {
  it.each([
    ['schema_violation', 400, 'INVALID_ARGUMENT'],
    ['engine_rejected', 400, 'INVALID_ARGUMENT'],
    ['unauthorized', 401, 'UNAUTHENTICATED'],
    ['source_forbidden', 403, 'PERMISSION_DENIED'],
    ['not_found', 404, 'NOT_FOUND'],
    ['method_not_allowed', 405, 'INVALID_ARGUMENT'],
    ['cancelled', 409, 'ABORTED'],
    ['session_closed', 410, 'FAILED_PRECONDITION'],
    ['body_too_large', 413, 'INVALID_ARGUMENT'],
    ['overloaded', 429, 'RESOURCE_EXHAUSTED'],
    ['internal', 500, 'INTERNAL'],
    ['engine_error', 502, 'INTERNAL'],
    ['engine_unavailable', 503, 'UNAVAILABLE'],
    ['deadline_exceeded', 504, 'DEADLINE_EXCEEDED'],
  ] as const)('%s has the status %d and the name %s', (code, status, name) => {
    const answer = gemini.encodeError(new FloeError(code, 'why'));
    expect(answer.status).toBe(status);
    expect(JSON.parse(answer.body)).toEqual({ error: { code: status, message: 'why', status: name } });
  });

  it("keeps the engine's message for an overlong prompt", () => {
    const error = new FloeError('engine_rejected', 'maximum context length is 5', { context_overflow: true });
    expect(JSON.parse(gemini.encodeError(error).body).error).toEqual({
      code: 400,
      message: 'maximum context length is 5',
      status: 'INVALID_ARGUMENT',
    });
  });

  it('contains the delay in whole seconds when the client can retry', () => {
    const details = [{ '@type': 'type.googleapis.com/google.rpc.RetryInfo', retryDelay: '2s' }];
    const busy = new FloeError('overloaded', 'busy', { retry_after_ms: 1_200 });
    expect(JSON.parse(gemini.encodeError(busy).body).error.details).toEqual(details);
    const refused = new FloeError('engine_rejected', 'no', { retry_after_ms: 1_200 });
    expect(JSON.parse(gemini.encodeError(refused).body).error).not.toHaveProperty('details');
  });

  it('is plain JSON in a stream of events, and a whole array in an array stream', () => {
    const error = new FloeError('engine_error', 'why');
    const { body } = gemini.encodeError(error);
    expect(gemini.openStream(reply(), events).fail(error)).toBe(body);
    const stream = gemini.openStream(reply(), array);
    expect(JSON.parse(stream.heartbeat() + stream.fail(error))).toEqual([JSON.parse(body)]);
  });
});
