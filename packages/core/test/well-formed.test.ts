import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { WellFormedPieces, wellFormed, wellFormedJson, wellFormedJsonText } from '../src/well-formed.ts';

const HALF = '\ud83d';
const OTHER_HALF = '\ude00';

describe('a well-formed value', () => {
  it('has U+FFFD in place of lone surrogates in strings, keys and lists', () => {
    const value = { [`k${HALF}`]: [`a${HALF}`, { b: OTHER_HALF }], pair: '😀', n: 1, none: null };
    expect(wellFormed(value)).toEqual({ 'k\ufffd': ['a\ufffd', { b: '\ufffd' }], pair: '😀', n: 1, none: null });
  });

  it('shares the parts that were valid, and is the value itself when all were', () => {
    const valid = { a: [{ b: '😀' }] };
    expect(wellFormed(valid)).toBe(valid);
    const both = wellFormed({ valid, broken: HALF });
    expect(both).toEqual({ valid, broken: '\ufffd' });
    expect(both.valid).toBe(valid);
  });

  it('is valid Unicode after it was encoded as JSON and parsed', () => {
    fc.assert(
      fc.property(fc.jsonValue({ stringUnit: 'binary', maxDepth: 2 }), fc.string({ unit: unitOf() }), (value, text) => {
        const json = wellFormedJson({ value, [text]: [text] });
        expect(JSON.parse(json)).toEqual(wellFormed(JSON.parse(JSON.stringify({ value, [text]: [text] }))));
        expect(/\\ud[89a-f]/.test(json.replaceAll('\\\\', ''))).toBe(false);
      }),
      { numRuns: 30 },
    );
  });
});

/** Characters that JSON texts with escapes of surrogates consist of. */
function unitOf(): fc.Arbitrary<string> {
  return fc.constantFrom(
    ...['\\', '\\\\', 'u', 'ud', '\\ud', '\\ud83', '\\ud83d', '\\uDE00', '\\ud83d\\ude00', '\\n', '"', 'a', '3', 'd'],
    ...[HALF, OTHER_HALF, '😀'],
  );
}

describe('JSON text', () => {
  it.each([
    ['{"a":"\\ud83d"}', '{"a":"\\ufffd"}'],
    ['{"a":"\\uDE00\\ud83D"}', '{"a":"\\ufffd\\ufffd"}'],
    ['{"a":"\\ud83d\\ude00 \\uD83D\\uDE00"}', '{"a":"\\ud83d\\ude00 \\uD83D\\uDE00"}'],
    ['{"a":"\\\\ud83d \\\\\\ud83d"}', '{"a":"\\\\ud83d \\\\\\ufffd"}'],
    ['{"a":"\\ud83d', '{"a":"\\ufffd'],
    ['{"a":"\\ud83d\\', '{"a":"\\ufffd\\'],
    [`{"a":"${HALF}\\n"}`, '{"a":"\ufffd\\n"}'],
    ['no JSON \\ud83d', 'no JSON \\ufffd'],
  ])('%s becomes %s', (json, expected) => {
    expect(wellFormedJsonText(json)).toBe(expected);
  });

  it('keeps its length and its meaning, apart from lone surrogates', () => {
    fc.assert(
      fc.property(fc.string({ unit: unitOf() }), (text) => {
        const json = wellFormedJsonText(text);
        expect(json).toHaveLength(text.length);
        expect(wellFormedJsonText(json)).toBe(json);
        let parsed: unknown;
        try {
          parsed = JSON.parse(`"${text}"`);
        } catch {
          return;
        }
        expect((JSON.parse(`"${json}"`) as string).isWellFormed()).toBe(true);
        const isValid = text.isWellFormed() && (parsed as string).isWellFormed();
        if (isValid) expect(JSON.parse(`"${json}"`)).toBe(parsed);
      }),
      { numRuns: 2_000 },
    );
  });

  it('is the beginning of the whole text when it arrives in pieces, with at most one character held back', () => {
    fc.assert(
      fc.property(fc.array(fc.string({ unit: unitOf() })), fc.boolean(), (pieces, isJson) => {
        const whole = isJson ? wellFormedJsonText(pieces.join('')) : pieces.join('').toWellFormed();
        const parts = new WellFormedPieces(isJson);
        const sent = pieces.map((piece) => parts.next(piece)).join('');
        expect(whole.startsWith(sent)).toBe(true);
        expect(whole.length - sent.length).toBeLessThan('\\ud83d\\ude00'.length);
        expect(sent.isWellFormed()).toBe(true);
      }),
      { numRuns: 2_000 },
    );
  });
});
