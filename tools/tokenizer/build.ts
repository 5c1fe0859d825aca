// Trains the byte-level BPE tokenizer of the simulated engine. The result depends only on packages/sim/assets/corpus.txt and on the code in
// tools/tokenizer/, so that it has the same bytes on every machine.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { repositoryRoot } from '../repository.ts';
import { generatedText } from './corpus.ts';

const CORPUS_FILE = 'packages/sim/assets/corpus.txt';

/**
 * Maximum number of BPE merges. With this number, common words are one token and rare words are split, so that token boundaries shift as
 * with a real vocabulary.
 */
const MERGE_COUNT = 6000;

/**
 * Pattern that splits text before merging: letters with one leading non-letter, single digits, runs of punctuation, newlines, and spaces.
 */
const SPLIT =
  "'(?:s|t|re|ve|m|ll|d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/**
 * Delimiters of the chat template, and whether each is special. Each delimiter is a single token. Special delimiters are left out of visible
 * text; the others are part of a reply's text.
 */
const ADDED: readonly (readonly [content: string, special: boolean])[] = [
  ['<|endoftext|>', true],
  ['<|im_start|>', true],
  ['<|im_end|>', true],
  ['<think>', false],
  ['</think>', false],
  ['<tool_call>', false],
  ['</tool_call>', false],
  ['<tool_response>', false],
  ['</tool_response>', false],
];

type Merge = readonly [left: string, right: string];

/** A distinct piece of the training text: the symbols that it consists of so far, and the number of its occurrences. */
type Word = { readonly count: number; symbols: readonly string[] };

/** Trains the tokenizer and returns the text of packages/sim/assets/tokenizer.json. */
export function tokenizerFile(): string {
  const alphabet = byteAlphabet();
  const corpus = `${readFileSync(join(repositoryRoot(), CORPUS_FILE), 'utf8')}\n${generatedText()}`;
  const merges = new Training(wordsOf(corpus, alphabet)).run(MERGE_COUNT);
  return `${JSON.stringify(tokenizerJson(alphabet, merges))}\n`;
}

/** Returns, for each byte, the printable character that represents it in the vocabulary of a byte-level tokenizer. */
function byteAlphabet(): readonly string[] {
  const isPrintable = (byte: number): boolean =>
    (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isPrintable(byte) ? byte : next++));
}

function wordsOf(text: string, alphabet: readonly string[]): Word[] {
  const counts = new Map<string, number>();
  for (const [piece] of text.matchAll(new RegExp(SPLIT, 'gu'))) counts.set(piece, (counts.get(piece) ?? 0) + 1);
  return [...counts].map(([piece, count]) => ({
    count,
    symbols: [...Buffer.from(piece, 'utf8')].map((byte) => alphabet[byte] ?? ''),
  }));
}

/** Returns the key of a pair of symbols. A space separates the two symbols, because no byte is represented by a space. */
const pairKey = (left: string, right: string): string => `${left} ${right}`;

function pairsOf(symbols: readonly string[]): string[] {
  return symbols.slice(1).map((right, index) => pairKey(symbols[index] ?? '', right));
}

/** The state of BPE training. It counts all pairs of adjacent symbols and updates the counts after each merge of the most frequent pair. */
class Training {
  private readonly words: readonly Word[];
  private readonly counts = new Map<string, number>();
  /** Maps each pair of adjacent symbols to the words that contain it, or contained it before a merge. */
  private readonly wordsWith = new Map<string, Set<Word>>();

  constructor(words: readonly Word[]) {
    this.words = words;
    for (const word of this.words) this.count(word, word.count);
  }

  /** Merges the most frequent pair of symbols repeatedly. Returns at most `mergeCount` merges, the most frequent first. */
  run(mergeCount: number): Merge[] {
    const merges: Merge[] = [];
    while (merges.length < mergeCount) {
      const best = this.mostFrequent();
      if (best === null) break;
      const [left = '', right = ''] = best.split(' ');
      merges.push([left, right]);
      for (const word of this.wordsWith.get(best) ?? []) {
        this.count(word, -word.count);
        word.symbols = merged(word.symbols, left, right);
        this.count(word, word.count);
      }
      this.counts.delete(best);
      this.wordsWith.delete(best);
    }
    return merges;
  }

  /**
   * Returns the key of the most frequent pair of symbols. Among pairs with equal counts it returns the smallest key, so that the result is
   * deterministic. Returns `null` when no pair occurs twice.
   */
  private mostFrequent(): string | null {
    let best: string | null = null;
    let bestCount = 1;
    for (const [key, count] of this.counts) {
      if (count > bestCount || (count === bestCount && best !== null && key < best)) {
        best = key;
        bestCount = count;
      }
    }
    return best;
  }

  private count(word: Word, delta: number): void {
    for (const key of pairsOf(word.symbols)) {
      this.counts.set(key, (this.counts.get(key) ?? 0) + delta);
      if (delta > 0) this.wordsWith.set(key, (this.wordsWith.get(key) ?? new Set()).add(word));
    }
  }
}

function merged(symbols: readonly string[], left: string, right: string): string[] {
  const result: string[] = [];
  for (let i = 0; i < symbols.length; i++) {
    const symbol = symbols[i] ?? '';
    const isPair = symbol === left && symbols[i + 1] === right;
    result.push(isPair ? left + right : symbol);
    if (isPair) i++;
  }
  return result;
}

function tokenizerJson(alphabet: readonly string[], merges: readonly Merge[]): object {
  const vocab: Record<string, number> = {};
  for (const [id, char] of [...alphabet].sort().entries()) vocab[char] = id;
  let next = alphabet.length;
  for (const [left, right] of merges) {
    if (vocab[left + right] === undefined) vocab[left + right] = next++;
  }
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: ADDED.map(([content, special], i) => ({
      id: next + i,
      content,
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized: false,
      special,
    })),
    normalizer: null,
    pre_tokenizer: {
      type: 'Sequence',
      pretokenizers: [
        { type: 'Split', pattern: { Regex: SPLIT }, behavior: 'Isolated', invert: false },
        { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false },
      ],
    },
    post_processor: null,
    decoder: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: false,
      vocab,
      merges,
    },
  };
}
