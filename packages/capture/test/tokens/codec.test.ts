import type { ChatMessage } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it, vi } from 'vitest';
import { chooseBase, decodeCompletion, encodeCompletion, sharedIds } from '../../src/tokens/codec.ts';
import type { Completion } from '../../src/tokens/completion.ts';
import { makeCompletion } from './session.ts';
import { Transcript } from './transcript.ts';

const message: fc.Arbitrary<ChatMessage> = fc.oneof(
  fc.record({ role: fc.constant('user' as const), content: fc.string({ unit: 'binary' }) }),
  fc.record({ role: fc.constant('tool' as const), tool_call_id: fc.string(), content: fc.string() }),
  fc.record({
    role: fc.constant('assistant' as const),
    content: fc.option(fc.string()),
    tool_calls: fc.array(
      fc.record({
        id: fc.string(),
        type: fc.constant('function' as const),
        function: fc.record({ name: fc.string(), arguments: fc.string() }),
      }),
    ),
  }),
);
/** Generates token sequences of only three different ids, so that two sequences often share a prefix. */
const ids = fc.array(fc.nat({ max: 2 }), { maxLength: 12 });

const completion: fc.Arbitrary<Completion> = fc
  .record({
    prompt: ids,
    response: ids,
    messages: fc.array(message, { maxLength: 4 }),
    index: fc.nat(),
    abandoned: fc.boolean(),
    versionSpans: fc.array(fc.record({ version: fc.option(fc.string()), start: fc.nat(), end: fc.nat() }), {
      maxLength: 4,
    }),
    toolsText: fc.constantFrom('[]', '[{"type":"function","function":{"name":"grep"}}]', '[ ]'),
    routedExperts: fc.option(
      fc
        .record({
          dtype: fc.constantFrom('uint8' as const, 'uint16' as const, 'int32' as const),
          shape: fc.tuple(fc.nat({ max: 5 }), fc.nat({ max: 3 }), fc.nat({ max: 2 })),
          start: fc.nat({ max: 3 }),
        })
        .chain((head) => {
          const bytes = { uint8: 1, uint16: 2, int32: 4 }[head.dtype] * head.shape.reduce((a, b) => a * b, 1);
          return fc
            .uint8Array({ minLength: bytes, maxLength: bytes })
            .map((data) => ({ ...head, data: Buffer.from(data) }));
        }),
    ),
    stop: fc.constantFrom(null, { kind: 'token' as const, id: 7 }, { kind: 'string' as const, text: 'é\n' }),
  })
  .map(makeCompletion);

function refuse(): never {
  throw new Error('the record names no base');
}

describe('the completion codec', () => {
  it('round-trips a completion with and without a base', () => {
    fc.assert(
      fc.property(completion, completion, fc.nat({ max: 4 }), (one, base, shared) => {
        const texts = [...base.request.messageTexts.slice(0, shared), ...one.request.messageTexts];
        const messages = [...base.request.messages.slice(0, shared), ...one.request.messages];
        const child = { ...one, completionId: 'child', request: { ...one.request, messages, messageTexts: texts } };
        const named = { ...base, completionId: 'base' };
        expect(decodeCompletion(encodeCompletion(child, null), refuse)).toEqual(child);
        const record = encodeCompletion(child, named);
        const lookUp = vi.fn((id: string) => (id === 'base' ? named : undefined));
        expect(decodeCompletion(record, lookUp)).toEqual(child);
        expect(lookUp).toHaveBeenCalledExactlyOnceWith('base');
      }),
      { numRuns: 500 },
    );
  });

  it('keeps the bits of every logprob and id', () => {
    const one = makeCompletion({
      prompt: [0, -1, 2 ** 31 - 1],
      response: [-(2 ** 31), 5, 6],
      logprobs: [-0, -1.1920929e-7, -1e-45],
    });
    const { responseLogprobs, responseIds, promptIds } = decodeCompletion(encodeCompletion(one, null), refuse);
    expect(responseLogprobs).toEqual(one.responseLogprobs);
    expect(Object.is(responseLogprobs[0], -0)).toBe(true);
    expect([...promptIds, ...responseIds]).toEqual([0, -1, 2147483647, -2147483648, 5, 6]);
  });

  it('refuses a record that is cut at any byte', () => {
    const one = makeCompletion({ prompt: [1, 2], response: [3], messages: [{ role: 'user', content: 'hi' }] });
    const record = encodeCompletion(one, null);
    const corrupt = expect.objectContaining({ code: 'corrupt_record' });
    for (let at = 0; at < record.length; at++) {
      expect(() => decodeCompletion(record.subarray(0, at), refuse)).toThrow(corrupt);
    }
    expect(() => decodeCompletion(Buffer.concat([record, Buffer.alloc(1)]), refuse)).toThrow(corrupt);
  });

  it('throws a typed error for a record that is changed at any byte of its header', () => {
    const record = encodeCompletion(makeCompletion({ prompt: [], response: [] }), null);
    const typed = expect.objectContaining({
      code: expect.stringMatching(/^(corrupt_record|malformed_json|schema_violation)$/),
    });
    for (let at = 0; at < 8; at++) {
      const changed = Buffer.from(record);
      changed[at] = (changed[at] ?? 0) ^ 1;
      expect(() => decodeCompletion(changed, refuse)).toThrow(typed);
    }
  });

  it('refuses a record whose base is missing or too short', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0);
    const c1 = t.call(t.after(h0, c0));
    const record = encodeCompletion(c1, c0);
    const corrupt = expect.objectContaining({ code: 'corrupt_record' });
    expect(() => decodeCompletion(record, () => undefined)).toThrow(corrupt);
    expect(() => decodeCompletion(record, () => makeCompletion({ prompt: [1], response: [2] }))).toThrow(corrupt);
  });

  it('stores little more than the new part of a continuing turn', () => {
    const t = new Transcript();
    let history = t.start();
    for (let turn = 0; turn < 50; turn++) history = t.after(history, t.call(history));
    const [before, last] = t.completions.slice(-2);
    if (before === undefined || last === undefined) throw new Error('no turns');
    const alone = encodeCompletion(last, null).length;
    const delta = encodeCompletion(last, before).length;
    const first = encodeCompletion(t.completions[0] ?? last, null).length;
    expect(delta).toBeLessThan(first + 200);
    expect(alone).toBeGreaterThan(delta * 3);
  });

  it('chooses the base with the longest common prefix', () => {
    fc.assert(
      fc.property(completion, fc.array(completion, { maxLength: 8 }), (one, earlier) => {
        const chosen = chooseBase(one, earlier);
        const longest = Math.max(0, ...earlier.map((base) => sharedIds(one, base)));
        expect(chosen === null ? 0 : sharedIds(one, chosen)).toBe(longest);
        for (const base of earlier) {
          const whole = [...base.promptIds, ...base.responseIds];
          const differs = [...one.promptIds].findIndex((id, i) => id !== whole[i]);
          expect(sharedIds(one, base)).toBe(differs < 0 ? one.promptIds.length : differs);
        }
      }),
      { numRuns: 300 },
    );
  });
});
