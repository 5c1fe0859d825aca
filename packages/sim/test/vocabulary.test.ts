import { readFileSync } from 'node:fs';
import { Tokenizer } from '@huggingface/tokenizers';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { tokenizerFile } from '../../../tools/tokenizer/build.ts';
import { noiseWords } from '../src/policy/scripted-reply.ts';
import { bundledVocabulary } from '../src/vocabulary.ts';

const vocabulary = bundledVocabulary();
const json = JSON.parse(readFileSync('packages/sim/assets/tokenizer.json', 'utf8'));
const reference = new Tokenizer(json, {});

const unicode = fc.string({ unit: 'binary', maxLength: 60 });
const chatty = fc
  .array(
    fc.oneof(
      unicode,
      fc.constantFrom(
        '<|im_start|>',
        '<|im_end|>',
        '<think>',
        '</think>',
        '<tool_call>',
        'the file',
        '\n',
        '  ',
        '{"a":1}',
      ),
    ),
    { maxLength: 12 },
  )
  .map((parts) => parts.join(''));

describe('the vocabulary', () => {
  it('decodes any encoded text to itself, including delimiters', () => {
    fc.assert(
      fc.property(chatty, (text) => {
        expect(vocabulary.decode(vocabulary.encode(text))).toBe(text);
      }),
      { numRuns: 400 },
    );
  });

  it('encodes section by section exactly as the reference encodes the whole text', () => {
    fc.assert(
      fc.property(chatty, (text) => {
        expect(vocabulary.encode(text)).toEqual(reference.encode(text, { add_special_tokens: false }).ids);
      }),
      { numRuns: 400 },
    );
  });

  it('encodes delimiters as single ids and hides turn delimiters', () => {
    const { special } = vocabulary;
    expect(vocabulary.encode('<|im_start|><think></think><|im_end|>')).toEqual([
      special.imStart,
      special.thinkOpen,
      special.thinkClose,
      special.imEnd,
    ]);
    expect(vocabulary.decode([special.imStart, special.thinkOpen, special.imEnd], { skipSpecial: true })).toBe(
      '<think>',
    );
  });

  it('splits characters over tokens and moves boundaries as real vocabularies do', () => {
    expect(vocabulary.encode('\u{1F980}').length).toBeGreaterThan(1);
    const whole = vocabulary.encode('{"path":"src/main.ts"}');
    const halves = [...vocabulary.encode('{"path":"sr'), ...vocabulary.encode('c/main.ts"}')];
    expect(halves).not.toEqual(whole);
    expect(vocabulary.decode(halves)).toBe(vocabulary.decode(whole));
  });

  it('refuses an id outside the vocabulary', () => {
    expect(() => vocabulary.decode([vocabulary.size])).toThrow(/out of vocabulary/);
  });

  it('keeps noise words as single tokens in any order', () => {
    const words = noiseWords(vocabulary);
    expect(words.length).toBeGreaterThan(500);
    fc.assert(
      fc.property(fc.array(fc.constantFrom(...words), { minLength: 1, maxLength: 40 }), (ids) => {
        expect(vocabulary.encode(`\n${vocabulary.decode(ids)}\n`).slice(1, -1)).toEqual(ids);
      }),
    );
  });

  it('has the bytes that training gives', () => {
    expect(readFileSync('packages/sim/assets/tokenizer.json', 'utf8') === tokenizerFile()).toBe(true);
  });
});
