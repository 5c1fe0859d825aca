import { FloeError, VirtualClock } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import { joinVersionSpans } from '../../../src/engines/chat/reply-tokens.ts';
import type { GenerateReply, GenerateRequest } from '../../../src/engines/engine.ts';
import { enginePoolsOf } from '../../../src/engines/pool/managed-engine-pools.ts';
import type { ReplyDelta } from '../../../src/reply.ts';
import { never, REQUEST, replyOf, ToyEngine, type ToyFacts, through } from './toy-engine.ts';

const TAKES_IDS: ToyFacts = { capabilities: { token_input: 'generate', pause: true } };
const FORM: Partial<GenerateRequest> = { responseFormat: { type: 'json_object' } };

/**
 * Makes an engine whose first reply is interrupted after the ids `first`. Each later reply adds the ids `later`, or as many of them as the
 * request allows. The text of an id is the id in angle brackets.
 */
function interrupted(first: readonly number[], later: readonly number[], facts: ToyFacts = TAKES_IDS): ToyEngine {
  let calls = 0;
  return new ToyEngine(
    'a',
    async ({ resumeFrom, maxTokens, listener }) => {
      const isFirst = calls++ === 0;
      const begun = [...(resumeFrom?.responseIds ?? [])];
      const sampled = (isFirst ? first : later).slice(0, maxTokens === null ? undefined : maxTokens - begun.length);
      const ids = [...begun, ...sampled];
      for (const id of sampled) listener?.delta({ kind: 'text', text: `<${id}>` });
      const spans = [{ version: isFirst ? 'v1' : 'v2', start: 0, end: sampled.length }];
      const over: Partial<GenerateReply> = {
        versionSpans: joinVersionSpans(resumeFrom?.versionSpans ?? [], begun.length, spans),
        finishReason: isFirst ? 'abort' : ids.length === maxTokens ? 'length' : 'stop',
      };
      return replyOf(ids, over);
    },
    facts,
  );
}

function poolWith(engine: ToyEngine) {
  const clock = new VirtualClock();
  const notices: { message: string; details: Readonly<Record<string, unknown>> }[] = [];
  const notice = (message: string, details: Readonly<Record<string, unknown>>): void => {
    notices.push({ message, details });
  };
  return { pool: enginePoolsOf([engine], { clock, notice }), clock, notices };
}

describe('a resumed reply with stop strings', () => {
  it('ends at a stop string across its seam, without the tokens after it', async () => {
    const engine = interrupted([5, 6, 7], [8, 9, 10]);
    const { pool } = poolWith(engine);
    const { reply } = await pool.generate({ ...REQUEST, stop: ['7><8'] }, never());
    expect(reply).toMatchObject({
      responseIds: Int32Array.of(5, 6, 7, 8),
      responseLogprobs: { length: 4 },
      versionSpans: [
        { version: 'v1', start: 0, end: 3 },
        { version: 'v2', start: 3, end: 4 },
      ],
      finishReason: 'stop',
      stop: { kind: 'string', text: '7><8' },
      message: { content: '<5><6><' },
    });
  });

  it('has the experts of its tokens only', async () => {
    const engine = interrupted([5, 6], [7, 8]);
    const answer = engine.onCall;
    engine.onCall = async (request, signal) => {
      const reply = (await answer?.(request, signal)) ?? replyOf([]);
      const rows = 3 + reply.responseIds.length - 1;
      const data = Buffer.from(Array.from({ length: rows }, (_, row) => row));
      const known = request.maxTokens === null ? null : request.resumeFrom?.routedExperts;
      return { ...reply, routedExperts: known ?? { dtype: 'uint8', shape: [rows, 1, 1], start: 0, data } };
    };
    const { reply } = await poolWith(engine).pool.generate({ ...REQUEST, stop: ['6><7'] }, never());
    expect(reply.responseIds).toEqual(Int32Array.of(5, 6, 7));
    expect(reply.routedExperts).toMatchObject({ shape: [5, 1, 1], data: Buffer.from([0, 1, 2, 3, 4]) });
  });

  it.each([
    ['no stop string is across its seam', [5, 6, 7], ['6><8']],
    ['the stop string ends in its later part alone', [5, 6, 7], ['8><9><']],
  ])('is returned as sampled when %s', async (_, first, stop) => {
    const engine = interrupted(first, [8, 9]);
    const { reply } = await poolWith(engine).pool.generate({ ...REQUEST, stop }, never());
    expect(reply.responseIds).toEqual(Int32Array.of(...first, 8, 9));
    expect(engine.calls).toBe(2);
  });

  it('does not forward the beginning of a stop string before the text shows whether it is one', async () => {
    const relayed: ReplyDelta[] = [];
    const listener = { started: () => {}, delta: (delta: ReplyDelta) => void relayed.push(delta) };
    const engine = interrupted([5, 6, 7], [8, 9]);
    const { reply } = await poolWith(engine).pool.generate({ ...REQUEST, listener, stop: ['6><7><8'] }, never());
    expect(reply.message.content).toBe('<5><');
    expect(relayed.map((delta) => (delta.kind === 'text' ? delta.text : delta.kind)).join('')).toBe('<5><');
  });

  it('is a partial result when its seam cannot be searched', async () => {
    const engine = interrupted([5, 6, 7], [8, 9]);
    engine.detokenize = () => Promise.reject(new FloeError('unsupported', 'no decoder'));
    const { pool, notices } = poolWith(engine);
    const { reply } = await pool.generate({ ...REQUEST, stop: ['7><8'] }, never());
    expect(reply).toMatchObject({ finishReason: 'abort', responseIds: Int32Array.of(5, 6, 7) });
    expect(notices.map(({ message }) => message)).toEqual([
      'a reply that a weight update interrupted could not be resumed; its partial result is returned',
    ]);
  });
});

describe('an interrupted reply under a constraint', () => {
  it.each([
    ['the engine accepts token ids', TAKES_IDS],
    ['the engine accepts only messages', {}],
  ])('is sampled again from its start, with a notice, when %s', async (_, facts) => {
    const engine = interrupted([5, 6], [7, 8, 9], facts);
    const { pool, clock, notices } = poolWith(engine);
    const { reply } = await through(clock, pool.generate({ ...REQUEST, ...FORM }, never()));
    expect(reply).toMatchObject({ finishReason: 'stop', responseIds: Int32Array.of(7, 8, 9) });
    expect(engine.requests.map(({ resumeFrom }) => resumeFrom)).toEqual([null, null]);
    expect(notices).toEqual([
      {
        message: 'a weight update interrupted a reply under a constraint; it is sampled again from its start',
        details: { completion_id: REQUEST.completionId, engine_id: 'a', discarded_tokens: 2 },
      },
    ]);
  });

  it('is not forwarded to its listener, because it may be sampled again', async () => {
    const relayed: ReplyDelta[] = [];
    const listener = { started: () => {}, delta: (delta: ReplyDelta) => void relayed.push(delta) };
    const { pool, clock } = poolWith(interrupted([5, 6], [7, 8]));
    await through(clock, pool.generate({ ...REQUEST, ...FORM, listener }, never()));
    expect(relayed).toEqual([]);
  });

  it('is a partial result after nine interruptions', async () => {
    const engine = new ToyEngine('a', async () => replyOf([5], { finishReason: 'abort' }), TAKES_IDS);
    const { pool, clock } = poolWith(engine);
    const { reply } = await through(clock, pool.generate({ ...REQUEST, ...FORM }, never()));
    expect(reply).toMatchObject({ finishReason: 'abort', responseIds: Int32Array.of(5) });
    expect(engine.calls).toBe(9);
  });
});
