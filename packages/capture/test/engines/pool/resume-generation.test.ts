import { FloeError, VirtualClock } from '@floe-rl/core';
import type { AssistantMessage } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import type { GenerateReply, GenerateRequest } from '../../../src/engines/engine.ts';
import { enginePoolsOf } from '../../../src/engines/pool/managed-engine-pools.ts';
import type { ReplyDelta } from '../../../src/reply.ts';
import {
  never,
  REQUEST,
  replyOf,
  settle,
  specOf,
  ToyEngine,
  type ToyFacts,
  ToyNetwork,
  through,
  unavailable,
} from './toy-engine.ts';

const TAKES_IDS: ToyFacts = { capabilities: { token_input: 'generate', pause: true } };

const cut = (ids: readonly number[], over: Partial<GenerateReply> = {}): GenerateReply =>
  replyOf(ids, { finishReason: 'abort', ...over });

/** Makes the reply to a resumed request: the tokens of `resumeFrom` followed by `more`, joined as an engine adapter joins them. */
function onwards(request: GenerateRequest, more: readonly number[], over: Partial<GenerateReply> = {}): GenerateReply {
  const resumeFrom = request.resumeFrom;
  const before = [...(resumeFrom?.responseIds ?? [])];
  const spans = [
    ...(resumeFrom?.versionSpans ?? []),
    { version: 'v2', start: before.length, end: before.length + more.length },
  ];
  return replyOf([...before, ...more], { versionSpans: spans, ...over });
}

const says = (message: Partial<AssistantMessage>): Partial<GenerateReply> => ({
  message: { role: 'assistant', content: null, ...message },
});

/** The servers that tests can register in a pool, keyed by engine id. A test that needs a server adds it. */
const joinable = new ToyNetwork();

function poolWith(...engines: readonly ToyEngine[]) {
  const clock = new VirtualClock();
  const notices: string[] = [];
  const pool = enginePoolsOf(engines, {
    clock,
    connect: joinable.connect,
    policy: 'assignment_count',
    notice: (message, { reason }) => void notices.push(`${message}: ${reason}`),
  });
  return { pool, clock, notices };
}

describe('a reply that a weight update interrupted', () => {
  it('waits while the engines are paused and resumes from its last token', async () => {
    const engine = ToyEngine.held('a', TAKES_IDS);
    const { pool } = poolWith(engine);
    const call = pool.generate(REQUEST, never());
    await settle();
    await pool.pause({ mode: 'abort', whilePaused: 'reject' });
    engine.pending[0]?.answer(cut([7, 8]));
    await settle();
    expect(engine.calls).toBe(1);
    await pool.resume();
    await settle();
    const [, sentCall] = engine.requests as [GenerateRequest, GenerateRequest];
    expect(sentCall.prompt?.ids).toEqual(Int32Array.of(1, 2, 3));
    expect(sentCall.prompt?.json.toString()).toBe('1,2,3');
    expect(sentCall.resumeFrom).toMatchObject({ responseIds: Int32Array.of(7, 8) });
    engine.pending[0]?.answer(onwards(sentCall, [9]));
    await expect(call).resolves.toMatchObject({
      engineId: 'a',
      reply: {
        responseIds: Int32Array.of(7, 8, 9),
        versionSpans: [
          { version: 'v1', start: 0, end: 2 },
          { version: 'v2', start: 2, end: 3 },
        ],
        finishReason: 'stop',
      },
    });
  });

  it('resumes with the ids of its prompt', async () => {
    const engine = new ToyEngine(
      'a',
      async (sentCall) => (sentCall.resumeFrom === null ? cut([7]) : onwards(sentCall, [8])),
      TAKES_IDS,
    );
    const prompt = { ids: Int32Array.of(4, 5), json: Buffer.from('4,5') };
    await poolWith(engine).pool.generate({ ...REQUEST, prompt }, never());
    expect(engine.requests.map((request) => request.prompt)).toEqual([prompt, prompt]);
  });

  it('resumes on another engine that accepts ids, never on one that does not', async () => {
    const first = new ToyEngine('a', async () => cut([7]), TAKES_IDS);
    const without = new ToyEngine('b');
    const second = new ToyEngine('c', async (sentCall) => onwards(sentCall, [8]), TAKES_IDS);
    const { pool } = poolWith(first, without, second);
    await expect(pool.generate(REQUEST, never())).resolves.toMatchObject({ engineId: 'c' });
    expect([first.calls, without.calls, second.calls]).toEqual([1, 0, 1]);
  });

  it('never resumes on an engine that was deregistered meanwhile', async () => {
    const first = ToyEngine.held('a', TAKES_IDS);
    const second = new ToyEngine('b', async (sentCall) => onwards(sentCall, [8]), TAKES_IDS);
    const { pool } = poolWith(first, second);
    const call = pool.generate(REQUEST, never());
    await settle();
    pool.deregister('a');
    first.pending[0]?.answer(cut([7]));
    await expect(call).resolves.toMatchObject({ engineId: 'b', reply: { responseIds: Int32Array.of(7, 8) } });
    expect([first.calls, first.closed]).toEqual([1, 1]);
  });

  it('never resumes on an engine with another tokenizer that has replaced the first', async () => {
    const first = ToyEngine.held('a', { ...TAKES_IDS, fingerprint: 'f' });
    const { pool, clock } = poolWith(first);
    const call = pool.generate(REQUEST, never());
    await settle();
    pool.deregister('a');
    const other = new ToyEngine('b', undefined, { ...TAKES_IDS, fingerprint: 'g' });
    joinable.put('b', other);
    await pool.register(specOf('b'));
    first.pending[0]?.answer(cut([7]));
    await expect(through(clock, call)).resolves.toMatchObject({ engineId: 'a', reply: { finishReason: 'abort' } });
    expect(other.calls).toBe(0);
  });

  it('may be interrupted any number of times while it grows', async () => {
    const engine = new ToyEngine(
      'a',
      async (sentCall) => {
        const length = sentCall.resumeFrom?.responseIds.length ?? 0;
        return onwards(sentCall, [length], { finishReason: length < 30 ? 'abort' : 'stop' });
      },
      TAKES_IDS,
    );
    const { pool, clock } = poolWith(engine);
    const { reply } = await pool.generate({ ...REQUEST, maxTokens: 40 }, never());
    expect(reply.responseIds).toEqual(Int32Array.from({ length: 31 }, (_, i) => i));
    expect(clock.monotonicMs()).toBe(0);
  });

  it('is returned as a partial result when it does not grow for a while', async () => {
    const engine = new ToyEngine(
      'a',
      async (sentCall) => cut([...(sentCall.resumeFrom?.responseIds ?? [7])]),
      TAKES_IDS,
    );
    const { pool, clock } = poolWith(engine);
    const { reply } = await through(clock, pool.generate(REQUEST, never()));
    expect(reply).toMatchObject({ finishReason: 'abort', responseIds: Int32Array.of(7) });
    expect(engine.calls).toBe(10);
    expect(clock.monotonicMs()).toBeGreaterThan(10_000);
  });

  it.each([
    ['the engines accept no ids', {}, {}],
    ['the engine does not report the prompt', TAKES_IDS, { promptIds: new Int32Array() }],
  ])('is returned as a partial result when %s', async (_, facts, over) => {
    const engine = new ToyEngine('a', async () => cut([7], over), facts);
    await expect(poolWith(engine).pool.generate(REQUEST, never())).resolves.toMatchObject({
      reply: { finishReason: 'abort' },
    });
    expect(engine.calls).toBe(1);
  });

  it('is returned as a partial result when the prompt has an image, which ids do not carry', async () => {
    const engine = new ToyEngine('a', async () => cut([7]), TAKES_IDS);
    const content = [{ type: 'image_url', image_url: { url: 'data:' } }];
    const messageTexts = [JSON.stringify({ role: 'user', content })];
    const { reply } = await poolWith(engine).pool.generate({ ...REQUEST, messageTexts }, never());
    expect([reply.finishReason, engine.calls]).toEqual(['abort', 1]);
    engine.onCall = async (sentCall) => (sentCall.resumeFrom === null ? cut([7]) : onwards(sentCall, [8]));
    const quoted = [JSON.stringify({ role: 'user', content: messageTexts[0] })];
    await expect(poolWith(engine).pool.generate({ ...REQUEST, messageTexts: quoted }, never())).resolves.toMatchObject({
      reply: { finishReason: 'stop' },
    });
  });

  it('ends with length when it has reached its bound or the context length', async () => {
    const engine = new ToyEngine('a', async () => cut([7, 8]), { ...TAKES_IDS, maxModelLen: 5 });
    const roomy = new ToyEngine('a', async () => cut([7, 8]), TAKES_IDS);
    const ends = async (it: ToyEngine, maxTokens: number | null): Promise<unknown> =>
      (await poolWith(it).pool.generate({ ...REQUEST, maxTokens }, never())).reply.finishReason;
    expect([await ends(engine, null), await ends(roomy, 2)]).toEqual(['length', 'length']);
    expect([engine.calls, roomy.calls]).toEqual([1, 1]);
  });

  it('is sampled from its start when it has no token, and its listener receives it', async () => {
    const relayed: string[] = [];
    const listener = { started: () => {}, delta: (delta: ReplyDelta) => void relayed.push(delta.kind) };
    let first = true;
    const engine = new ToyEngine(
      'a',
      async (sentCall) => {
        if (first) {
          first = false;
          return cut([]);
        }
        sentCall.listener?.delta({ kind: 'text', text: '<7>' });
        return replyOf([7]);
      },
      TAKES_IDS,
    );
    const { pool, clock } = poolWith(engine);
    await expect(through(clock, pool.generate({ ...REQUEST, listener }, never()))).resolves.toMatchObject({
      reply: { finishReason: 'stop' },
    });
    expect(engine.requests[1]).toMatchObject({ prompt: null, resumeFrom: null });
    expect(relayed).toEqual(['text']);
  });

  it('is not resumed when the call was aborted', async () => {
    const controller = new AbortController();
    const engine = new ToyEngine(
      'a',
      async () => {
        controller.abort(new Error('left'));
        return cut([7]);
      },
      TAKES_IDS,
    );
    await expect(poolWith(engine).pool.generate(REQUEST, controller.signal)).resolves.toMatchObject({
      reply: { finishReason: 'abort' },
    });
    expect(engine.calls).toBe(1);
  });

  it('is returned as a partial result with a notice when it cannot be resumed', async () => {
    const refuse = new FloeError('engine_rejected', 'too long');
    const engine = new ToyEngine(
      'a',
      (sentCall) => (sentCall.resumeFrom === null ? Promise.resolve(cut([7])) : Promise.reject(refuse)),
      TAKES_IDS,
    );
    const { pool, notices } = poolWith(engine);
    await expect(pool.generate(REQUEST, never())).resolves.toMatchObject({ reply: cut([7]) });
    expect(notices).toEqual([
      'a reply that a weight update interrupted could not be resumed; its partial result is returned: too long',
    ]);
  });

  it('rejects with the reason of a signal that aborts while it waits', async () => {
    const controller = new AbortController();
    const engine = ToyEngine.held('a', TAKES_IDS);
    const { pool } = poolWith(engine);
    const call = pool.generate(REQUEST, controller.signal);
    await settle();
    await pool.pause({ mode: 'abort', whilePaused: 'hold' });
    engine.pending[0]?.answer(cut([7]));
    await settle();
    controller.abort(new Error('left'));
    await expect(call).rejects.toThrow('left');
  });

  it('is resumed on another engine when the first one is unavailable', async () => {
    const first = new ToyEngine('a', async () => cut([7]), TAKES_IDS);
    const away = new ToyEngine('b', () => Promise.reject(unavailable()), TAKES_IDS);
    const last = new ToyEngine('c', async (sentCall) => onwards(sentCall, [8]), TAKES_IDS);
    await expect(poolWith(first, away, last).pool.generate(REQUEST, never())).resolves.toMatchObject({
      engineId: 'c',
      reply: { responseIds: Int32Array.of(7, 8) },
    });
  });

  it.each([[[8, 9]], [[7]], [[]]])('is rejected when the resumed reply begins differently (%j)', async (ids) => {
    const engine = new ToyEngine(
      'a',
      async (sentCall) => (sentCall.resumeFrom === null ? cut([7, 8]) : replyOf(ids)),
      TAKES_IDS,
    );
    await expect(poolWith(engine).pool.generate(REQUEST, never())).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining('does not begin with the tokens that were sampled'),
    });
  });
});

describe('an interrupted reply that was streamed', () => {
  const call = (id: string, text: string) => ({
    id,
    type: 'function' as const,
    function: { name: 'run', arguments: text },
  });

  const CALL_BEGUN: readonly ReplyDelta[] = [
    { kind: 'reasoning', text: 'hm' },
    { kind: 'text', text: 'I ' },
    { kind: 'text', text: 'go' },
    { kind: 'call', index: 0, id: 'call_1', name: 'run' },
    { kind: 'arguments', index: 0, text: '{"a"' },
  ];

  async function continued(deltas: readonly ReplyDelta[], message: Partial<AssistantMessage>) {
    const relayed: ReplyDelta[] = [];
    const listener = { started: () => {}, delta: (delta: ReplyDelta) => void relayed.push(delta) };
    const engine = new ToyEngine(
      'a',
      async (sentCall) => {
        if (sentCall.resumeFrom !== null) {
          sentCall.listener?.delta({ kind: 'text', text: 'twice' });
          return onwards(sentCall, [8], says(message));
        }
        for (const delta of deltas) sentCall.listener?.delta(delta);
        return cut([7]);
      },
      TAKES_IDS,
    );
    const { reply } = await poolWith(engine).pool.generate({ ...REQUEST, listener }, never());
    expect(relayed).toEqual(deltas);
    return reply.message;
  }

  it('is completed by its message, with the call ids that were forwarded', async () => {
    const whole = {
      reasoning_content: 'hmm',
      content: 'I go',
      tool_calls: [call('call_x', '{"a":1}'), call('call_y', '{}')],
    };
    await expect(continued(CALL_BEGUN, whole)).resolves.toEqual({
      role: 'assistant',
      ...whole,
      tool_calls: [call('call_1', '{"a":1}'), call('call_y', '{}')],
    });
  });

  it.each([
    ['text', { reasoning_content: 'hm', content: 'I stay', tool_calls: [call('c', '{"a":1}')] }],
    ['thinking', { content: 'I go', tool_calls: [call('c', '{"a":1}')] }],
    ['arguments', { reasoning_content: 'hm', content: 'I go', tool_calls: [call('c', '{"b":1}')] }],
    ['no call', { reasoning_content: 'hm', content: 'I go' }],
    [
      'name',
      {
        reasoning_content: 'hm',
        content: 'I go',
        tool_calls: [{ id: 'c', type: 'function' as const, function: { name: 'rune', arguments: '{"a"' } }],
      },
    ],
  ])('is rejected when its %s contradicts the forwarded deltas', async (_, message) => {
    await expect(continued(CALL_BEGUN, message)).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining('contradicts the part that was streamed'),
    });
  });
});
