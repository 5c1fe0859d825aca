import { expect, it } from 'vitest';
import { distinctWords, queryWords, splitNames } from '../../src/search/words.ts';

// Indexes on disk contain these words. Where they change, the format of the indexes must change too.
it('the words of a document are its distinct runs of letters, digits and marks in lower case', () => {
  expect(distinctWords('The café, the CAFÉ: हिन्दी 2x')).toEqual(['the', 'café', 'हिन्दी', '2x']);
});

it('the words of code are those of its names', () => {
  expect(splitNames('readFile(get_HTTPResponse2Body, __init__)')).toBe('read File(get HTTPResponse2 Body,   init  )');
  expect(queryWords(splitNames('readFile of max_bytes'))).toEqual(['read', 'file', 'max', 'bytes']);
});

it('a query leaves out words that are in nearly every text, unless it has no others', () => {
  expect(queryWords('what is the tower of pisa')).toEqual(['tower', 'pisa']);
  expect(queryWords('to be or not to be')).toEqual(['to', 'be', 'or', 'not']);
});
