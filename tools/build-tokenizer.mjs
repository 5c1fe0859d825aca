/**
 * Trains the byte-level BPE tokenizer of the simulated engine and writes src/sim/assets/tokenizer.json.
 *
 *   node tools/build-tokenizer.mjs           train and write
 *   node tools/build-tokenizer.mjs --check   train and fail when the committed file differs
 *
 * The result depends on src/sim/assets/corpus.txt and on this file alone, so a rebuild gives the same bytes anywhere.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { generatedText } from './tokenizer-corpus.mjs';

const ASSETS = fileURLToPath(new URL('../src/sim/assets/', import.meta.url));

/** Enough that common words are one token and rare ones are split, so that boundaries move as with a real vocabulary. */
const MERGE_COUNT = 6000;

/** Letters with one leading non-letter, single digits, runs of punctuation, newlines, blanks. */
const SPLIT =
  "'(?:s|t|re|ve|m|ll|d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/** `special` ones are dropped from visible text; the others are delimiters that a reply's text shows. */
const ADDED = [
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

/** The printable stand-in of every byte that byte-level vocabularies use. */
function byteAlphabet() {
  const printable = [];
  for (let b = 0x21; b <= 0x7e; b++) printable.push(b);
  for (let b = 0xa1; b <= 0xac; b++) printable.push(b);
  for (let b = 0xae; b <= 0xff; b++) printable.push(b);
  const chars = new Array(256);
  for (const b of printable) chars[b] = String.fromCharCode(b);
  let next = 256;
  for (let b = 0; b < 256; b++) chars[b] ??= String.fromCharCode(next++);
  return chars;
}

function wordsOf(text, alphabet) {
  const counts = new Map();
  for (const [piece] of text.matchAll(new RegExp(SPLIT, 'gu'))) counts.set(piece, (counts.get(piece) ?? 0) + 1);
  return [...counts].map(([piece, count]) => ({
    count,
    symbols: [...Buffer.from(piece, 'utf8')].map((b) => alphabet[b]),
  }));
}

/** Pairs are joined by a blank, which no stand-in of a byte is. */
const pairKey = (left, right) => `${left} ${right}`;

/** Most frequent pair first; equal counts go to the smaller key, so that the order is total. */
function train(words, mergeCount) {
  const counts = new Map();
  const places = new Map();
  const add = (key, delta, index) => {
    counts.set(key, (counts.get(key) ?? 0) + delta);
    if (delta > 0) {
      const set = places.get(key) ?? new Set();
      set.add(index);
      places.set(key, set);
    }
  };
  words.forEach(({ symbols, count }, index) => {
    for (let i = 0; i + 1 < symbols.length; i++) add(pairKey(symbols[i], symbols[i + 1]), count, index);
  });
  const merges = [];
  while (merges.length < mergeCount) {
    let best;
    let bestCount = 1;
    for (const [key, count] of counts) {
      if (count > bestCount || (count === bestCount && best !== undefined && key < best)) {
        best = key;
        bestCount = count;
      }
    }
    if (best === undefined) break;
    const [left, right] = best.split(' ');
    merges.push([left, right]);
    for (const index of places.get(best)) {
      const word = words[index];
      for (let i = 0; i + 1 < word.symbols.length; i++)
        add(pairKey(word.symbols[i], word.symbols[i + 1]), -word.count, index);
      const merged = [];
      for (let i = 0; i < word.symbols.length; i++) {
        if (word.symbols[i] === left && word.symbols[i + 1] === right) {
          merged.push(left + right);
          i++;
        } else merged.push(word.symbols[i]);
      }
      word.symbols = merged;
      for (let i = 0; i + 1 < merged.length; i++) add(pairKey(merged[i], merged[i + 1]), word.count, index);
    }
    counts.delete(best);
    places.delete(best);
  }
  return merges;
}

function tokenizerJson(alphabet, merges) {
  const vocab = {};
  for (const char of [...alphabet].sort()) vocab[char] = Object.keys(vocab).length;
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

const alphabet = byteAlphabet();
const corpus = `${readFileSync(`${ASSETS}corpus.txt`, 'utf8')}\n${generatedText()}`;
const merges = train(wordsOf(corpus, alphabet), MERGE_COUNT);
const text = `${JSON.stringify(tokenizerJson(alphabet, merges))}\n`;
if (process.argv.includes('--check')) {
  if (readFileSync(`${ASSETS}tokenizer.json`, 'utf8') !== text) {
    console.error('src/sim/assets/tokenizer.json is not what this tool builds; run node tools/build-tokenizer.mjs');
    process.exitCode = 1;
  }
} else {
  writeFileSync(`${ASSETS}tokenizer.json`, text);
  console.log(`${merges.length} merges, ${text.length} bytes`);
}
