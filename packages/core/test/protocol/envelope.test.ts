import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { FloeError } from '../../src/errors.ts';
import { decodeEnvelope, encodeEnvelope } from '../../src/protocol/envelope.ts';

const envelopes = fc.record({
  header: fc.dictionary(fc.string(), fc.jsonValue()),
  parts: fc
    .uniqueArray(fc.tuple(fc.string(), fc.uint8Array({ maxLength: 100 })), { selector: ([name]) => name, maxLength: 4 })
    .map((parts) => new Map(parts.map(([name, bytes]) => [name, Buffer.from(bytes)]))),
});

describe('envelope', () => {
  it('is decoded to the header and the parts that were encoded', () => {
    fc.assert(
      fc.property(envelopes, (envelope) => {
        const decoded = decodeEnvelope(encodeEnvelope(envelope));
        expect(decoded.header).toEqual(JSON.parse(JSON.stringify(envelope.header)));
        expect([...decoded.parts.keys()]).toEqual([...envelope.parts.keys()]);
        for (const [name, data] of envelope.parts) expect(decoded.parts.get(name)?.equals(data)).toBe(true);
      }),
    );
  });

  it('is rejected when its body is truncated at any byte or has bytes after its end', () => {
    const body = encodeEnvelope({ header: { a: 1 }, parts: new Map([['trajectory', Buffer.from('{"traces":[]}')]]) });
    for (let end = 0; end < body.length; end++) {
      expect(() => decodeEnvelope(body.subarray(0, end))).toThrow(FloeError);
    }
    expect(() => decodeEnvelope(Buffer.concat([body, Buffer.from('x')]))).toThrow(/after the last part/);
  });
});
