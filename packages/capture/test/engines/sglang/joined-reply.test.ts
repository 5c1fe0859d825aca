import { describe, expect, it } from 'vitest';
import { joinReply } from '../../../src/engines/sglang/joined-reply.ts';
import type { RoutedExperts } from '../../../src/reply.ts';
import { prompted } from './scripted-sglang.ts';

/** Makes the routed experts of one layer with two experts per token. Both experts of the position `at` have the number `10 * at + mark`. */
function expertsOf(rows: number, mark: number, start = 0): RoutedExperts {
  const values = Int32Array.from({ length: rows * 2 }, (_, index) => 10 * (start + (index >> 1)) + mark);
  return { dtype: 'int32', shape: [rows, 1, 2], start, data: Buffer.from(values.buffer) };
}

/**
 * Returns the routed experts of a reply of three tokens to a prompt of four tokens. The first two tokens of the reply were sampled in the
 * first part, before the reply was resumed.
 */
function joined(first: RoutedExperts | null, whole: RoutedExperts | null): RoutedExperts | null {
  const reply = joinReply(
    prompted([7, 8, 9, 10]),
    {
      responseIds: Int32Array.of(21, 22),
      responseLogprobs: Float32Array.of(-1, -1),
      versionSpans: [{ version: 'old', start: 0, end: 2 }],
      routedExperts: first,
    },
    {
      promptIds: Int32Array.of(7, 8, 9, 10, 21, 22),
      responseIds: Int32Array.of(23),
      responseLogprobs: Float32Array.of(-2),
      versionSpans: [{ version: 'new', start: 0, end: 1 }],
      routedExperts: whole,
      finishReason: 'stop',
      stop: null,
      usage: { prompt_tokens: 6, completion_tokens: 1, cached_tokens: 0 },
    },
  );
  return reply.routedExperts;
}

describe('the routed experts of a resumed reply', () => {
  it('are those with which each token was sampled, so that the first part keeps its own', () => {
    const experts = joined(expertsOf(5, 1), expertsOf(6, 2));
    expect(experts).toMatchObject({ dtype: 'int32', shape: [6, 1, 2], start: 0 });
    const values = new Int32Array(Uint8Array.from(experts?.data ?? []).buffer);
    expect([...values]).toEqual([1, 1, 11, 11, 21, 21, 31, 31, 41, 41, 52, 52]);
  });

  const whole = expertsOf(6, 2);
  const unmatched: [string, RoutedExperts | null, RoutedExperts | null][] = [
    ['the first part reports none', null, whole],
    ['the later part reports none', expertsOf(5, 1), null],
    ['the parts have numbers of another type', { ...expertsOf(5, 1), dtype: 'uint8' }, whole],
    ['the parts have another number of experts', { ...expertsOf(5, 1), shape: [5, 2, 1] }, whole],
    ['the later part begins after the first', expertsOf(5, 1), expertsOf(5, 2, 1)],
    ['the later part ends before the first', expertsOf(5, 1), expertsOf(4, 2)],
  ];
  it.each(unmatched)('are null when %s', (_, first, later) => {
    expect(joined(first, later)).toBeNull();
  });
});
