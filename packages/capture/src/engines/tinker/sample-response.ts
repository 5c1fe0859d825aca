import { z } from 'zod';
import { invalidReply, parseReplyJson, parseWith, tokenIdSchema } from '../chat/reply-tokens.ts';
import type { ReportedSample } from '../checked-sample.ts';

/** Content type of a result in the binary form of Protocol Buffers, which Tinker's SDK requires for samples since version 0.25. */
export const PROTOBUF = 'application/x-protobuf';

/**
 * The result of a sampling request. `promptLogprobs` has one entry for each scored token of the prompt, or NaN where none was computed. The
 * scored tokens are the last tokens of the prompt.
 */
export type SampleResponse = ReportedSample & {
  /** `null` when they were not requested. */
  readonly promptLogprobs: Float32Array | null;
};

const jsonSchema = z.looseObject({
  sequences: z.tuple([
    z.looseObject({
      tokens: z.array(tokenIdSchema),
      logprobs: z.array(z.number()).nullish(),
      stop_reason: z.enum(['stop', 'length']),
    }),
  ]),
  prompt_logprobs: z.array(z.number().nullable()).nullish(),
  prompt_cache_hit_tokens: z.int().min(0).nullish(),
});

/** Parses a result in JSON, the form of servers for older versions of the SDK. Throws `engine_error` for an invalid result. */
export function parseJsonSample(body: Buffer): SampleResponse {
  const { sequences, prompt_logprobs, prompt_cache_hit_tokens } = parseWith(jsonSchema, parseReplyJson(body, null));
  const [{ tokens, logprobs, stop_reason }] = sequences;
  return {
    ids: Int32Array.from(tokens),
    logprobs: logprobs ? Float32Array.from(logprobs) : null,
    stopReason: stop_reason,
    cachedTokens: prompt_cache_hit_tokens ?? null,
    promptLogprobs: prompt_logprobs ? Float32Array.from(prompt_logprobs, (value) => value ?? Number.NaN) : null,
  };
}

/** Numbers of the fields of `SampleResponse` in Tinker's schema. */
const RESPONSE = { sequences: 1, promptLogprobs: 2, promptCacheHitTokens: 4 } as const;
/** Numbers of the fields of `SampledSequence`. */
const SEQUENCE = { stopReason: 1, tokens: 2, logprobs: 3 } as const;
/** Values of the enumeration `StopReason`. A field with the value 0 is absent from a message. */
const STOP_REASONS = ['stop', 'length'] as const;

/** Parses a result in the binary form of Protocol Buffers. Throws `engine_error` for an invalid result. */
export function parseProtobufSample(body: Buffer): SampleResponse {
  let sequence: Buffer | null = null;
  let promptLogprobs: Float32Array | null = null;
  let cachedTokens: number | null = null;
  for (const { number, value } of fieldsOf(body)) {
    if (number === RESPONSE.sequences) {
      if (sequence !== null) throw invalidReply('it has several sequences, but one was requested');
      sequence = bytesOf(value, 'sequences');
    } else if (number === RESPONSE.promptLogprobs) {
      promptLogprobs = floatsOf(bytesOf(value, 'prompt_logprobs'), 'prompt_logprobs');
    } else if (number === RESPONSE.promptCacheHitTokens) cachedTokens = numberOf(value, 'prompt_cache_hit_tokens');
  }
  if (sequence === null) throw invalidReply('it has no sequence');
  let stopReason: number = 0;
  let ids = new Int32Array(0);
  let logprobs: Float32Array | null = null;
  for (const { number, value } of fieldsOf(sequence)) {
    if (number === SEQUENCE.stopReason) stopReason = numberOf(value, 'stop_reason');
    else if (number === SEQUENCE.tokens) ids = intsOf(bytesOf(value, 'tokens'), 'tokens');
    else if (number === SEQUENCE.logprobs) logprobs = floatsOf(bytesOf(value, 'logprobs'), 'logprobs');
  }
  const reason = STOP_REASONS[stopReason];
  if (reason === undefined) throw invalidReply(`stop_reason is ${stopReason}`);
  if (ids.some((id) => id < 0)) throw invalidReply('tokens has a negative id');
  return { ids, logprobs, stopReason: reason, cachedTokens, promptLogprobs };
}

/** A field of a message: the number that identifies it, and its value, which is a number or bytes. */
type Field = { readonly number: number; readonly value: number | Buffer };

/** Yields the fields of a message in the order in which they were written. Throws `engine_error` when the message is malformed. */
function* fieldsOf(message: Buffer): Generator<Field> {
  const reader = new WireReader(message);
  while (!reader.isAtEnd) {
    const tag = reader.varint();
    const [number, wireType] = [Math.floor(tag / 8), tag % 8];
    switch (wireType) {
      case 0:
        yield { number, value: reader.varint() };
        break;
      case 1:
        yield { number, value: reader.bytes(8) };
        break;
      case 2:
        yield { number, value: reader.bytes(reader.varint()) };
        break;
      case 5:
        yield { number, value: reader.bytes(4) };
        break;
      default:
        throw invalidReply(`it is no valid message of Protocol Buffers: wire type ${wireType}`);
    }
  }
}

class WireReader {
  private readonly message: Buffer;
  private at = 0;

  constructor(message: Buffer) {
    this.message = message;
  }

  get isAtEnd(): boolean {
    return this.at === this.message.length;
  }

  /** Reads an integer of variable length. Values above 2^53 lose precision, but the fields that floe reads have no such values. */
  varint(): number {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = this.message[this.at++];
      if (byte === undefined) throw invalidReply('it is no valid message of Protocol Buffers: it ends early');
      value += (byte % 128) * factor;
      if (byte < 128) return value;
    }
  }

  bytes(length: number): Buffer {
    const end = this.at + length;
    if (end > this.message.length) throw invalidReply('it is no valid message of Protocol Buffers: it ends early');
    const bytes = this.message.subarray(this.at, end);
    this.at = end;
    return bytes;
  }
}

function bytesOf(value: Field['value'], field: string): Buffer {
  if (typeof value === 'number') throw invalidReply(`${field} is a number`);
  return value;
}

function numberOf(value: Field['value'], field: string): number {
  if (typeof value !== 'number') throw invalidReply(`${field} is no number`);
  return value;
}

/** Copies bytes into an array of 32-bit integers. The copy is needed because a typed array must begin at a multiple of four bytes. */
function intsOf(bytes: Buffer, field: string): Int32Array<ArrayBuffer> {
  return new Int32Array(wordsOf(bytes, field));
}

function floatsOf(bytes: Buffer, field: string): Float32Array<ArrayBuffer> {
  return new Float32Array(wordsOf(bytes, field));
}

function wordsOf(bytes: Buffer, field: string): ArrayBuffer {
  if (bytes.length % 4 !== 0) throw invalidReply(`${field} has ${bytes.length} bytes, no multiple of 4`);
  return Uint8Array.from(bytes).buffer;
}
