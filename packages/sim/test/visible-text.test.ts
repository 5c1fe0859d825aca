import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { VisibleText } from '../src/visible-text.ts';
import { bundledVocabulary } from '../src/vocabulary.ts';

const vocabulary = bundledVocabulary();
const options = { stop: [] as string[], includeStop: false, skipSpecial: true };

function released(
  ids: readonly number[],
  more: Partial<typeof options> = {},
): { texts: string[]; stop: string | null; used: number } {
  const visible = new VisibleText(vocabulary, { ...options, ...more });
  const texts: string[] = [];
  const take = (pieces: readonly { text: string }[]): void => void texts.push(pieces.map(({ text }) => text).join(''));
  let used = 0;
  for (const id of ids) {
    visible.push(id);
    used++;
    if (visible.stop !== null) break;
    take(visible.release());
  }
  take(visible.finish());
  return { texts, stop: visible.stop, used };
}

const words = fc.array(fc.constantFrom('ab', 'a', 'b', 'ba', ' ', '\u{1F980}', 'é', '<think>', '\n', 'stop'), {
  maxLength: 25,
});

describe('visible text', () => {
  it('adds up to the decoded text in whole characters', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', maxLength: 40 }), (text) => {
        const { texts } = released(vocabulary.encode(text));
        expect(texts.join('')).toBe(text);
        for (const part of texts) expect(Buffer.from(part, 'utf8').toString('utf8')).toBe(part);
      }),
    );
  });

  it('ends exactly before the first stop string and never retracts released text', () => {
    fc.assert(
      fc.property(
        words,
        fc.uniqueArray(fc.constantFrom('abab', 'ba', '\u{1F980}b', 'k>', 'top'), { maxLength: 3 }),
        (parts, stop) => {
          const text = parts.join('');
          const first = Math.min(...stop.map((one) => text.indexOf(one)).filter((index) => index >= 0));
          const { texts, stop: found } = released(vocabulary.encode(text), { stop });
          if (first === Number.POSITIVE_INFINITY) {
            expect(found).toBeNull();
            expect(texts.join('')).toBe(text);
          } else if (found !== null) {
            // When the text contains several stop strings, the visible text ends before the stop string that is complete first.
            const visible = texts.join('');
            expect(text.startsWith(visible + found)).toBe(true);
            for (const one of stop) expect(visible.includes(one)).toBe(false);
          }
          expect(found === null).toBe(first === Number.POSITIVE_INFINITY);
        },
      ),
      { numRuns: 500 },
    );
  });

  it('keeps the stop string with includeStop', () => {
    expect(released(vocabulary.encode('one two three'), { stop: ['two'], includeStop: true }).texts.join('')).toBe(
      'one two',
    );
  });

  it('shows turn delimiters only without skipSpecial', () => {
    const ids = vocabulary.encode('a<|im_end|>b<think>');
    expect(released(ids).texts.join('')).toBe('ab<think>');
    expect(released(ids, { skipSpecial: false }).texts.join('')).toBe('a<|im_end|>b<think>');
  });
});
