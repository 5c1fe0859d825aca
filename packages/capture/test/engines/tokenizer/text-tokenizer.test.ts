import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { bundledVocabulary } from '@floe-rl/sim';
import { Tokenizer } from '@huggingface/tokenizers';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../../../../tools/repository.ts';
import { TextTokenizer, tokenizerJsonSchema } from '../../../src/engines/tokenizer/text-tokenizer.ts';

const json = tokenizerJsonSchema.parse(
  JSON.parse(readFileSync(join(repositoryRoot(), 'packages', 'sim', 'assets', 'tokenizer.json'), 'utf8')),
);
const words = bundledVocabulary();

/** Texts with special tokens, several scripts and white space in turn. */
const texts = fc
  .array(
    fc.oneof(
      fc.string({ unit: 'grapheme' }),
      fc.constantFrom(
        '<|im_start|>',
        '<|im_end|>\n',
        '<think>',
        '</think>',
        '<|im_',
        '日本語',
        '👩‍👩‍👧',
        '\r\n\t  ',
        "it's 10_000",
      ),
    ),
    { maxLength: 12 },
  )
  .map((parts) => parts.join(''));

describe('a byte-level tokenizer', () => {
  const tokenizer = new TextTokenizer(json, {});
  const whole = new Tokenizer(json, {});

  it('returns the ids of the whole text although it encodes sections', () => {
    fc.assert(
      fc.property(texts, (text) => {
        expect([...tokenizer.encode(text)]).toEqual(whole.encode(text, { add_special_tokens: false }).ids);
      }),
    );
  });

  it('returns the text of the ids that it makes of a text', () => {
    fc.assert(
      fc.property(texts, (text) => {
        expect(tokenizer.decode(tokenizer.encode(text))).toBe(text);
      }),
    );
  });

  it('returns the text of any ids, as the vocabulary defines it', () => {
    fc.assert(
      fc.property(fc.array(fc.nat({ max: words.size - 1 }), { maxLength: 20 }), (ids) => {
        expect(tokenizer.decode(Int32Array.from(ids))).toBe(words.decode(ids));
      }),
    );
  });

  it('finds tokens by their text', () => {
    expect(tokenizer.idOf('<|im_end|>')).toBe(words.special.imEnd);
    expect(tokenizer.idOf('<|no_token|>')).toBeNull();
  });
});

describe('a tokenizer that writes a space in front of a text', () => {
  it('encodes a text as a whole, because a section would get a space too', () => {
    const pieces = ['▁', '▁a', 'a', 'b', '<s>'];
    const metaspace = { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: true };
    const tokenizer = new TextTokenizer(
      tokenizerJsonSchema.parse({
        added_tokens: [{ id: 4, content: '<s>', special: true, normalized: false }],
        normalizer: null,
        pre_tokenizer: metaspace,
        post_processor: null,
        decoder: metaspace,
        model: {
          type: 'BPE',
          vocab: Object.fromEntries(pieces.map((piece, id) => [piece, id])),
          merges: ['▁ a'],
          unk_token: null,
        },
      }),
      {},
    );
    expect([...tokenizer.encode('a<s>a')]).toEqual([1, 4, 2]);
  });
});
