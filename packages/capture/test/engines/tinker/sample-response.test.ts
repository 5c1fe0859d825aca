import { FloeError } from '@floe-rl/core';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { parseJsonSample, parseProtobufSample } from '../../../src/engines/tinker/sample-response.ts';
import { bytesField, protobufOf } from './tinker-server.ts';

/**
 * A message that the schema in Tinker's SDK 0.38.0 wrote. It has the tokens 7, 300 and 151645 with log-probabilities -0.5, -1.25 and 0, the
 * stop reason `length` and 130 cached tokens. It also has the log-probabilities of a prompt of two tokens.
 */
const OF_SDK = '0a1e0801120c070000002c0100005d5002001a0c000000bf0000a0bf0000000012080000c07f000000c0208201';

it('a message of the SDK is read as the SDK wrote it', () => {
  expect(parseProtobufSample(Buffer.from(OF_SDK, 'hex'))).toEqual({
    ids: Int32Array.of(7, 300, 151645),
    logprobs: Float32Array.of(-0.5, -1.25, 0),
    stopReason: 'length',
    cachedTokens: 130,
    promptLogprobs: Float32Array.of(Number.NaN, -2),
  });
});

it('any message is read as it was written', () => {
  const samples = fc.record({
    tokens: fc.array(fc.nat({ max: 2 ** 31 - 1 })),
    stop_reason: fc.constantFrom('stop' as const, 'length' as const),
    prompt_cache_hit_tokens: fc.nat({ max: 1_000_000 }),
  });
  fc.assert(
    fc.property(samples, ({ tokens, stop_reason, prompt_cache_hit_tokens }) => {
      const logprobs = tokens.map((_, index) => -index / 3);
      const read = parseProtobufSample(protobufOf({ tokens, logprobs, stop_reason, prompt_cache_hit_tokens }));
      expect(read).toEqual({
        ids: Int32Array.from(tokens),
        logprobs: Float32Array.from(logprobs),
        stopReason: stop_reason,
        cachedTokens: prompt_cache_hit_tokens === 0 ? null : prompt_cache_hit_tokens,
        promptLogprobs: null,
      });
    }),
  );
});

it('any bytes are read or refused with engine_error', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 40 }), (bytes) => {
      try {
        parseProtobufSample(Buffer.from(bytes));
      } catch (error) {
        expect(FloeError.is(error) && error.code).toBe('engine_error');
      }
    }),
  );
});

it.each<[string, Buffer, string]>([
  ['no sequence', Buffer.alloc(0), 'it has no sequence'],
  ['two sequences', Buffer.concat([...bytesField(1, Buffer.alloc(0)), ...bytesField(1, Buffer.alloc(0))]), 'several'],
  ['an unknown stop reason', Buffer.concat(bytesField(1, Buffer.from([0x08, 0x05]))), 'stop_reason is 5'],
  ['tokens of three bytes', Buffer.concat(bytesField(1, Buffer.concat(bytesField(2, Buffer.alloc(3))))), '3 bytes'],
  ['a negative id', Buffer.concat(bytesField(1, Buffer.concat(bytesField(2, Buffer.alloc(4, 0xff))))), 'negative'],
])('a message with %s is refused', (_, body, message) => {
  expect(() => parseProtobufSample(body)).toThrow(
    expect.objectContaining({ code: 'engine_error', message: expect.stringContaining(message) }),
  );
});

it('a result in JSON is read with nulls as missing log-probabilities of the prompt', () => {
  const sequences = [{ tokens: [1, 2], logprobs: [-1, -2], stop_reason: 'stop' }];
  const body = { type: 'sample', sequences, prompt_logprobs: [null, -3], prompt_cache_hit_tokens: 4 };
  expect(parseJsonSample(Buffer.from(JSON.stringify(body)))).toEqual({
    ids: Int32Array.of(1, 2),
    logprobs: Float32Array.of(-1, -2),
    stopReason: 'stop',
    cachedTokens: 4,
    promptLogprobs: Float32Array.of(Number.NaN, -3),
  });
});
