import { bundledVocabulary } from '@floe-rl/sim';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { VisibleText } from '../../../../sim/src/visible-text.ts';
import { cutAtStop, stopAcrossSeam, stopStartLength } from '../../../src/engines/chat/stop-strings.ts';

const vocabulary = bundledVocabulary();
const decode = async (ids: Int32Array): Promise<string> => vocabulary.decode(ids);
const idsOf = (text: string): Int32Array => Int32Array.from(vocabulary.encode(text));

describe('the end of a text', () => {
  it.each([
    ['It is Obs', ['Observation:'], 3],
    ['It is Obs', ['bs.', 'Observation:'], 3],
    ['It is done', ['Observation:'], 0],
    ['It is Observation:', ['Observation:'], 0],
    ['aab', ['abab'], 2],
    ['', ['a'], 0],
    ['text', [], 0],
  ])('of "%s" has the beginning of a stop string of %j in its last %i characters', (text, stops, length) => {
    expect(stopStartLength(text, stops)).toBe(length);
  });
});

it('the end of a text is compared with any number of stop strings', () => {
  // A call with so many arguments would overflow the stack.
  const stops = new Array<string>(3_000_000).fill('stop');
  expect(stopStartLength('a text and st', stops)).toBe(2);
});

describe('a message', () => {
  it('is cut before the stop string that ends first, and in thinking before text', () => {
    const message = { role: 'assistant' as const, content: 'one two three', reasoning_content: 'alpha beta' };
    expect(cutAtStop(message, ['three', 'two'])).toEqual({ message: { ...message, content: 'one ' }, stop: 'two' });
    expect(cutAtStop(message, ['two', ' beta'])).toEqual({
      message: { role: 'assistant', content: '', reasoning_content: 'alpha' },
      stop: ' beta',
    });
    expect(cutAtStop(message, ['four'])).toBeNull();
  });
});

describe('a resumed reply', () => {
  it('ends at the token that completes a stop string across its seam', async () => {
    const ids = idsOf('One, two, three, four.');
    const seam = idsOf('One, two').length;
    await expect(stopAcrossSeam(ids, seam, ['two, three'], decode)).resolves.toEqual({
      stop: 'two, three',
      count: idsOf('One, two, three').length,
    });
  });

  it.each([
    ['there are no stop strings', 'One, two', []],
    ['the stop string is in the first part only', 'One, two, three', ['two']],
    ['the stop string begins after the seam', 'One,', ['two']],
    ['the first part ends like the beginning of a stop string that does not follow', 'One, two', ['two. Three']],
    ['there is no later part', 'One, two, three, four.', ['four. Five']],
  ])('has no stop string across its seam when %s', async (_, first, stops) => {
    const ids = idsOf('One, two, three, four.');
    await expect(stopAcrossSeam(ids, idsOf(first).length, stops, decode)).resolves.toBeNull();
  });

  it('ends where an engine would have ended it in one call, wherever the seam is', async () => {
    const parts = fc.array(fc.constantFrom('ab', 'b', ' a', 'é', '🙂', '漢', '\n'), { minLength: 2, maxLength: 24 });
    const stop = fc.array(fc.constantFrom('a', 'b', 'é', '🙂', '\n'), { minLength: 1, maxLength: 4 });
    await fc.assert(
      fc.asyncProperty(parts, fc.array(stop, { minLength: 1, maxLength: 2 }), fc.nat(), async (texts, many, at) => {
        const stops = many.map((chars) => chars.join(''));
        // Each character is encoded separately. A character that the vocabulary lacks becomes several tokens.
        const ids = Int32Array.from(texts.flatMap((text) => [...text].flatMap((char) => vocabulary.encode(char))));
        const end = engineEnd(ids, 0, stops);
        const seam = 1 + (at % Math.max(1, end - 1));
        if (seam >= end) return;
        const later = engineEnd(ids, seam, stops);
        const found = await stopAcrossSeam(ids.subarray(0, later), seam, stops, decode);
        expect(found?.count ?? later).toBe(end);
      }),
      { numRuns: 500 },
    );
  });
});

/** Returns the number of ids after which an engine that samples from position `from` ends the reply. */
function engineEnd(ids: Int32Array, from: number, stops: readonly string[]): number {
  const text = new VisibleText(vocabulary, { stop: stops, includeStop: false, skipSpecial: false });
  for (let at = from; at < ids.length; at++) {
    text.push(ids[at] as number);
    if (text.stop !== null) return at + 1;
  }
  return ids.length;
}
