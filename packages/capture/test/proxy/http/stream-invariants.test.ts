import { EventEmitter } from 'node:events';
import type { ServerResponse } from 'node:http';
import { FloeError, VirtualClock } from '@floe-rl/core';
import type { AssistantMessage, DialectName } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { type CanonicalRequest, plainContext } from '../../../src/dialects/dialect.ts';
import { DIALECTS } from '../../../src/dialects/registry.ts';
import { StreamWriter } from '../../../src/proxy/http/delivery.ts';
import { ask } from '../dialect-bodies.ts';

/** Time after which a silent stream has had at least one heartbeat. */
const SILENCE_MS = 20_000;

const CREATED_MS = 1_700_000_000_500;
const CREATED = 1_700_000_000;

const ARGUMENTS = ['{"command":"ls"}', '{"command":"pwd"}'] as const;
const CALL_IDS = ['call_1', 'call_2'] as const;

/** The reply as far as it was sampled after each step: thinking, text, and two tool calls. */
const STEPS: readonly AssistantMessage[] = [
  message('Hm', ''),
  message('Hmm.', ''),
  message('Hmm.', 'Let '),
  message('Hmm.', 'Let me.'),
  message('Hmm.', 'Let me.', ''),
  message('Hmm.', 'Let me.', ARGUMENTS[0].slice(0, 5)),
  message('Hmm.', 'Let me.', ARGUMENTS[0]),
  message('Hmm.', 'Let me.', ARGUMENTS[0], ARGUMENTS[1].slice(0, 5)),
  message('Hmm.', 'Let me.', ...ARGUMENTS),
];
const WHOLE = STEPS.at(-1) as AssistantMessage;

function message(thinking: string, content: string, ...args: string[]): AssistantMessage {
  return {
    role: 'assistant',
    content,
    reasoning_content: thinking,
    tool_calls: args.map((text, index) => ({
      id: CALL_IDS[index] ?? '',
      type: 'function',
      function: { name: 'sh', arguments: text },
    })),
  };
}

/** An HTTP response that keeps what is written to it. */
class Received extends EventEmitter {
  headersSent = false;
  writableEnded = false;
  destroyed = false;
  writableNeedDrain = false;
  pieces: string[] = [];

  writeHead(): void {
    this.headersSent = true;
  }

  flushHeaders(): void {}

  write(text: string): void {
    this.pieces.push(text);
  }

  end(text: string): void {
    this.pieces.push(text);
    this.writableEnded = true;
  }
}

type Ending = { readonly kind: 'finish' } | { readonly kind: 'fail'; readonly afterSteps: number };

function requestOf(name: DialectName, over: Record<string, unknown> = {}): CanonicalRequest {
  const dialect = DIALECTS.find((one) => one.name === name) as (typeof DIALECTS)[number];
  const { path, body } = ask(name, { stream: true });
  const query = new URLSearchParams(over.alt === 'array' ? '' : path.split('?')[1]);
  const at = name === 'gemini' ? { model: 'policy', stream: true, query } : {};
  return dialect.parseRequest({ ...body, ...over, alt: undefined }, { ...plainContext(), ...at });
}

/** Writes a reply that is silent before each of the steps `silences`; the step after the last one stands for the end of the reply. */
function streamed(name: DialectName, request: CanonicalRequest, silences: readonly number[], ending: Ending): string[] {
  const dialect = DIALECTS.find((one) => one.name === name) as (typeof DIALECTS)[number];
  const clock = new VirtualClock();
  const response = new Received();
  const parts = { completionId: 'cpl_1', index: 0, arrivedMs: 0, timestampMs: CREATED_MS, dialect, request };
  const writer = new StreamWriter(response as unknown as ServerResponse, parts, clock, 10_000);
  const steps = ending.kind === 'fail' ? STEPS.slice(0, ending.afterSteps) : STEPS;
  for (const [at, step] of steps.entries()) {
    if (silences.includes(at)) clock.advance(SILENCE_MS);
    writer.writeDeltas(step, 4);
  }
  if (silences.includes(steps.length)) clock.advance(SILENCE_MS);
  writer.stop();
  if (ending.kind === 'finish') {
    writer.finish({
      completionId: 'cpl_1',
      model: 'policy',
      createdMs: CREATED_MS,
      promptTokens: 4,
      message: WHOLE,
      finishReason: 'tool_calls',
      stopText: null,
      usage: { prompt_tokens: 4, completion_tokens: 9, cached_tokens: null },
    });
  } else {
    writer.fail(new FloeError('engine_error', 'why'));
  }
  return response.pieces;
}

/** The data of an event, whose form the checks assert. */
type Data = ReturnType<typeof JSON.parse>;

/** Returns the data of all events of a stream. */
function eventsOf(text: string): Data[] {
  return text
    .split('\n\n')
    .filter((event) => event !== '')
    .map((event) => event.slice(event.indexOf('data: ') + 'data: '.length))
    .map((data) => (data === '[DONE]' ? { done: true } : (JSON.parse(data) as Data)));
}

const CHECKS: Record<DialectName, (text: string, isWhole: boolean) => void> = {
  openai_chat(text, isWhole) {
    const events = eventsOf(text);
    expect(events.pop()).toEqual({ done: true });
    for (const event of events) {
      expect(event).toMatchObject({
        id: 'cpl_1',
        model: 'policy',
        created: CREATED,
        object: 'chat.completion.chunk',
      });
    }
    if (!isWhole) {
      expect(events.pop()).toMatchObject({ error: { message: 'why' } });
    } else {
      expect(events.pop()).toMatchObject({ choices: [], usage: { total_tokens: 13 } });
      expect(events.at(-1)?.choices[0].finish_reason).toBe('tool_calls');
    }
    const deltas = events.map(({ choices }) => choices[0].delta as Data);
    expect(deltas.map(({ role }) => role)).toEqual(deltas.map((_, at) => (at === 0 ? 'assistant' : undefined)));
    expect(events.filter(({ choices }) => choices[0].finish_reason !== null)).toHaveLength(isWhole ? 1 : 0);
    if (!isWhole) return;
    expect(deltas.map((delta) => delta.content ?? '').join('')).toBe(WHOLE.content);
    const pieces = deltas.flatMap((delta) => (delta.tool_calls ?? []) as Data[]);
    for (const [at, args] of ARGUMENTS.entries()) {
      const own = pieces.filter(({ index }) => index === at);
      expect(own.map((piece) => piece.function.arguments).join('')).toBe(args);
      expect(own.flatMap(({ id }) => id ?? [])).toEqual([CALL_IDS[at]]);
    }
  },
  openai_responses(text, isWhole) {
    const events = eventsOf(text);
    expect(events.map((event) => event.sequence_number)).toEqual(events.map((_, at) => at));
    expect(events.slice(0, 2).map(({ type }) => type)).toEqual(['response.created', 'response.in_progress']);
    expect(events.at(-1)?.type).toBe(isWhole ? 'response.completed' : 'response.failed');
    const responses = events.flatMap(({ response }) => (response === undefined ? [] : [response as Data]));
    expect(responses).toHaveLength(3);
    for (const response of responses) {
      expect(response).toMatchObject({ id: responses[0]?.id, model: 'policy', created_at: CREATED });
    }
    const added: string[] = [];
    const done: string[] = [];
    for (const { type, item, item_id, output_index: index } of events) {
      if (type === 'response.output_item.added') {
        expect(index).toBe(added.length);
        expect(done).toHaveLength(added.length);
        added.push(item.id);
      }
      if (index !== undefined) expect(item?.id ?? item_id).toBe(added[index]);
      if (type === 'response.output_item.done') done.push(item.id);
    }
    const output = (responses.at(-1)?.output ?? []) as Data[];
    expect(done).toEqual(isWhole ? output.map(({ id }) => id) : done);
  },
  anthropic(text, isWhole) {
    const events = eventsOf(text);
    const types = events.map(({ type }) => type as string);
    expect(types.at(-1)).toBe(isWhole ? 'message_stop' : 'error');
    // Clients retry a call when its first event is an error.
    if (types.length > 1) {
      expect(types.indexOf('message_start')).toBe(0);
      expect(events[0]?.message).toMatchObject({ id: 'cpl_1', model: 'policy', role: 'assistant' });
      expect(types.lastIndexOf('message_start')).toBe(0);
    }
    let open = -1;
    let blocks = 0;
    for (const { type, index } of events) {
      if (type === 'content_block_start') {
        expect([open, index]).toEqual([-1, blocks]);
        open = index;
        blocks++;
      } else if (type === 'content_block_delta') {
        expect(index).toBe(open);
      } else if (type === 'content_block_stop') {
        expect(index).toBe(open);
        open = -1;
      }
    }
    if (isWhole) expect([blocks, open, types.at(-2)]).toEqual([4, -1, 'message_delta']);
  },
  gemini(text, isWhole) {
    const last = text.lastIndexOf('\n\n');
    const end = last < 0 ? 0 : last + 2;
    expect(text.slice(end)).toBe(isWhole ? '' : '{"error":{"code":502,"message":"why","status":"INTERNAL"}}');
    checkResponses(eventsOf(text.slice(0, end)), isWhole);
  },
};

function checkResponses(responses: readonly Data[], isWhole: boolean): void {
  for (const response of responses) {
    expect(response).toMatchObject({
      responseId: 'cpl_1',
      modelVersion: 'policy',
      candidates: [{ index: 0, content: { role: 'model' } }],
    });
  }
  const reasons = responses.map(({ candidates }) => candidates[0].finishReason as string | undefined);
  expect(reasons.filter((reason) => reason !== undefined)).toEqual(isWhole ? ['STOP'] : []);
  if (!isWhole) return;
  expect(reasons.at(-1)).toBe('STOP');
  const parts = responses.flatMap(({ candidates }) => candidates[0].content.parts as Data[]);
  const calls = parts.flatMap(({ functionCall }) => (functionCall === undefined ? [] : [functionCall as Data]));
  expect(calls.map(({ id }) => id)).toEqual(CALL_IDS);
}

const POSITIONS = [...STEPS.keys(), STEPS.length];
/** No silence, one silence at each position, and silence at all positions. */
const SILENCES = [[], ...POSITIONS.map((at) => [at]), POSITIONS];

describe.each(DIALECTS.map(({ name }) => name))('a stream of %s', (name) => {
  const request = requestOf(name, name === 'openai_chat' ? { stream_options: { include_usage: true } } : {});

  it.each(SILENCES.map((at) => [at.join(', ') || 'none', at] as const))(
    'keeps its ids, roles and order with heartbeats before the steps %s',
    (_, silences) => {
      CHECKS[name](streamed(name, request, silences, { kind: 'finish' }).join(''), true);
    },
  );

  it.each(POSITIONS)('keeps its ids, roles and order when it fails after %d steps', (afterSteps) => {
    for (const silences of [[], [0], [afterSteps], POSITIONS]) {
      const pieces = streamed(name, request, silences, { kind: 'fail', afterSteps });
      CHECKS[name](pieces.join(''), false);
    }
  });

  it.each(POSITIONS)('sends one heartbeat or more in a silence before step %d', (at) => {
    const silent = streamed(name, request, [at], { kind: 'finish' });
    expect(silent.length).toBeGreaterThan(streamed(name, request, [], { kind: 'finish' }).length);
  });
});

describe('an array stream of gemini', () => {
  const request = requestOf('gemini', { alt: 'array' });

  it('is one array of responses of one id, whatever heartbeats precede it', () => {
    for (const silences of SILENCES) {
      const text = streamed('gemini', request, silences, { kind: 'finish' }).join('');
      checkResponses(JSON.parse(text) as Data[], true);
    }
  });

  it('is one array with an error when it fails', () => {
    for (const afterSteps of POSITIONS) {
      const text = streamed('gemini', request, [0, afterSteps], { kind: 'fail', afterSteps }).join('');
      expect(JSON.parse(text)).toMatchObject([{ error: { message: 'why' } }]);
    }
  });
});
