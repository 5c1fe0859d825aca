import { EventEmitter } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib';
import { VirtualClock } from '@floe-rl/core';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { usedMemory } from '../../../../../test/memory.ts';
import { BodyBudget, decodeBody, MAX_BODY_BYTES, readBody } from '../../../src/proxy/http/body.ts';
import { unpackZstd } from '../../../src/proxy/http/zstd.ts';
import { chatBody, Rig } from '../rig.ts';

let rig: Rig;
let key: string;
beforeEach(async () => {
  rig = await Rig.start();
  key = rig.key();
  await rig.open({ key });
});
afterEach(() => rig.stop());

const MAGIC = [0x28, 0xb5, 0x2f, 0xfd];
const WINDOW_8_MB = 13 << 3;

function block(kind: 'raw' | 'rle', data: Buffer, size: number, last: boolean): Buffer {
  const header = (last ? 1 : 0) | ((kind === 'raw' ? 0 : 1) << 1) | (size << 3);
  return Buffer.concat([Buffer.of(header & 255, (header >> 8) & 255, header >> 16), data]);
}

/** Makes one zstd frame of uncompressed blocks of `blockBytes` bytes. */
function frame(data: Buffer, blockBytes = 100_000): Buffer {
  const blocks: Buffer[] = [];
  for (let at = 0; at === 0 || at < data.length; at += blockBytes) {
    const part = data.subarray(at, at + blockBytes);
    blocks.push(block('raw', part, part.length, at + blockBytes >= data.length));
  }
  return Buffer.concat([Buffer.of(...MAGIC, 0, WINDOW_8_MB), ...blocks]);
}

function hostile(kind: 'raw' | 'rle', size: number, count: number): Buffer {
  const one = block(kind, kind === 'rle' ? Buffer.of(0x20) : Buffer.alloc(0), size, false);
  return Buffer.concat([Buffer.of(...MAGIC, 0, WINDOW_8_MB), ...Array.from({ length: count }, () => one)]);
}

const text = JSON.stringify(chatBody());
// The same chat request of 580 bytes, compressed in two ways by a real zstd encoder: as one frame, and as two frames. The second of the two
// frames has no checksum.
const REAL = [
  'KLUv/WREAUUCAJKEDxagpRoDnPFrgxf6EiYJ4FM1+vRl/9cEA2BYJIMFxTKC4X6vlCspeaxyB995VN2Ee7PgbqLHjJijgu+TAUW3AQAFPqgzCsaSYg4=',
  'KLUv/QRYFQIAUgQOE7BVYwwsmzchLVGCMC3RWIOUUWAiGSwolhEM93ulXEnJY5U7fOdRdQPuzYK7iR4zYo4K3ycDRbcBAAUAqBkFpf40gii1L/0AaMUAAIhheSBpdCBhZ2FpbiBzIn1dfQEAaKDOLw==',
];

function send(encoding: string, packed: Buffer, headers: Record<string, string> = {}) {
  return rig.send({
    path: `/s/${key}/v1/chat/completions`,
    raw: packed,
    headers: { 'content-encoding': encoding, ...headers },
  }).reply;
}

describe('a body that arrives in single bytes', () => {
  const BYTES = 50_000;

  it.each([{}, { 'content-length': String(BYTES) }])(
    'takes memory for its bytes, not for each read (headers: %o)',
    async (headers) => {
      const request = Object.assign(new EventEmitter(), { headers });
      const read = readBody(request as IncomingMessage, new VirtualClock());
      const before = usedMemory();
      // Each read of a socket has a buffer of its own.
      for (let i = 0; i < BYTES; i++) request.emit('data', Buffer.allocUnsafeSlow(1).fill(i & 255));
      expect(usedMemory() - before).toBeLessThan(20 * BYTES);
      request.emit('end');
      const body = await read;
      expect(body.equals(Buffer.from(Array.from({ length: BYTES }, (_, i) => i & 255)))).toBe(true);
    },
  );
});

describe('a compressed body', () => {
  it.each<[string, Buffer]>([
    ['gzip', gzipSync(text)],
    ['GZIP', gzipSync(text)],
    ['x-gzip', gzipSync(text)],
    ['deflate', deflateSync(text)],
    ['br', brotliCompressSync(text)],
    ['zstd', frame(Buffer.from(text))],
    ['identity', Buffer.from(text)],
  ])('is read like a plain one when it is encoded with %s', async (encoding, packed) => {
    expect((await send(encoding, packed)).status).toBe(200);
    expect(rig.server.chats[0]?.body.messages).toEqual([{ role: 'user', content: 'hi' }]);
  });

  it.each(REAL)('is read when a real zstd encoder made it: %#', async (base64) => {
    expect((await send('zstd', Buffer.from(base64, 'base64'))).status).toBe(200);
    expect(rig.server.chats[0]?.body.messages).toEqual([{ role: 'user', content: 'say it again '.repeat(40) }]);
  });

  it('is the same request as another encoding of it', async () => {
    const session = await rig.open({ key: 'another-key-0123456789012345678901', sessionId: 'ses_2' });
    key = 'another-key-0123456789012345678901';
    await send('gzip', gzipSync(text), { 'idempotency-key': 'one' });
    await send('br', brotliCompressSync(text), { 'idempotency-key': 'one' });
    expect(session.completions().map(({ abandoned }) => abandoned)).toEqual([true, false]);
  });

  it.each<[string, string, Buffer, RegExp]>([
    [
      'of an unknown encoding',
      'compress',
      Buffer.from(text),
      /content-encoding compress is not supported; there is gzip/,
    ],
    ['of two encodings', 'gzip, br', gzipSync(text), /content-encoding gzip, br is not supported/],
    ['that is not gzip', 'gzip', Buffer.from(text), /not valid gzip/],
    ['that is cut off in gzip', 'gzip', gzipSync(text).subarray(0, 40), /not valid gzip/],
    ['that is not deflate', 'deflate', Buffer.from(text), /not valid deflate/],
    ['that is not brotli', 'br', Buffer.from(text), /not valid br/],
    ['that is not zstd', 'zstd', Buffer.from(text), /not valid zstd: a frame has an unknown magic number/],
    ['that is cut off in zstd', 'zstd', frame(Buffer.from(text)).subarray(0, 40), /not valid zstd: it is cut off/],
    ['with a window beyond reason', 'zstd', Buffer.of(...MAGIC, 0, 0xf8, 1, 0, 0), /window of \d+ bytes exceeds/],
    ['that needs a dictionary', 'zstd', Buffer.of(...MAGIC, 1, 0, 7, 1, 0, 0), /needs a dictionary/],
    [
      'that declares another size than it has',
      'zstd',
      Buffer.concat([Buffer.of(...MAGIC, 0x80, WINDOW_8_MB, 7, 0, 0, 0), block('raw', Buffer.from('{}'), 2, true)]),
      /a frame of 7 bytes holds 2/,
    ],
    ['of empty blocks behind a large window', 'zstd', hostile('raw', 0, 10_000), /blocks hold too little/],
    ['that is no JSON inside', 'zstd', frame(Buffer.from('{')), /not valid JSON/],
  ])('is refused with the reason: %s', async (_, encoding, packed, reason) => {
    const { status, body } = await send(encoding, packed);
    expect(status).toBe(400);
    expect(JSON.parse(body).error.message).toMatch(reason);
    expect(rig.server.chats).toEqual([]);
  });

  it.each<[string, Buffer]>([
    ['gzip', gzipSync(Buffer.alloc(MAX_BODY_BYTES + 1, 0x20))],
    ['deflate', deflateSync(Buffer.alloc(MAX_BODY_BYTES + 1, 0x20))],
    ['br', brotliCompressSync(Buffer.alloc(MAX_BODY_BYTES + 1, 0x20), { params: { 1: 1 } })],
    ['zstd', hostile('rle', 131_072, 20_000)],
  ])('is refused with 413 when it is a bomb in %s, and the session continues', async (encoding, packed) => {
    const answers = await Promise.all([send(encoding, packed), send(encoding, packed)]);
    expect(answers.map(({ status }) => status)).toEqual([413, 413]);
    expect((await rig.chat(key).reply).status).toBe(200);
  });
});

describe('unpacking a body', () => {
  it('is limited to one body of a session at a time, and the waiting ones count in its budget', async () => {
    const reading = new BodyBudget();
    const packed = gzipSync(text);
    const bodies = [packed, packed, packed].map((body) => decodeBody(body, 'gzip', reading));
    expect(reading.unpacking).toMatchObject({ inUse: 1, waiting: 2 });
    expect((await Promise.all(bodies)).map(String)).toEqual([text, text, text]);
    expect(reading.unpacking).toMatchObject({ inUse: 0, waiting: 0 });
    reading.take(2 * MAX_BODY_BYTES - 1);
    await expect(decodeBody(packed, 'gzip', reading)).rejects.toMatchObject({ code: 'overloaded' });
  });

  it('lets other work run after each megabyte of zstd output or so, and not after each block', async () => {
    const yields = vi.spyOn(globalThis, 'setImmediate');
    const blocks = 160;
    await unpackZstd(frame(Buffer.alloc(blocks * 100_000, 0x20)), 20_000_000);
    // Decoding a block is expected to take as long as writing 624 kB of output. The block itself counts for 100 kB. The other 524 kB are for
    // moving the decoder's window of 8 MB in memory.
    expect(yields.mock.calls.length).toBeGreaterThanOrEqual(blocks / 3);
    expect(yields.mock.calls.length).toBeLessThan(blocks * 0.75);
    yields.mockRestore();
  });

  it('yields a body or a refusal for any zstd bytes', async () => {
    const wrong = fc.record({ at: fc.nat(), value: fc.nat(255) });
    const sources = fc.oneof(
      fc.constantFrom(...REAL).map((base64) => Buffer.from(base64, 'base64')),
      fc.uint8Array({ maxLength: 300 }).map((bytes) => frame(Buffer.from(bytes), 50)),
      fc.uint8Array({ maxLength: 60 }).map((bytes) => Buffer.concat([Buffer.of(...MAGIC), Buffer.from(bytes)])),
    );
    await fc.assert(
      fc.asyncProperty(sources, fc.array(wrong, { maxLength: 4 }), async (source, changes) => {
        const bytes = Buffer.from(source);
        for (const { at, value } of changes) bytes[at % bytes.length] = value;
        await unpackZstd(bytes, 1_000_000).catch((error: unknown) => {
          expect(error).toMatchObject({ message: expect.any(String) });
        });
      }),
      { numRuns: 500 },
    );
    for (const data of [Buffer.alloc(0), Buffer.from('x'), Buffer.alloc(300_001, 'ab')]) {
      expect(
        (await unpackZstd(Buffer.concat([frame(data), frame(data)]), 1_000_000)).equals(Buffer.concat([data, data])),
      ).toBe(true);
    }
  });
});
