import { readFileSync } from 'node:fs';
import { assetPath, FloeError } from '@floe-rl/core';
import { Tokenizer } from '@huggingface/tokenizers';
import { LRUCache } from 'lru-cache';

/** Path of the tokenizer file below the package root. The published package contains the file. */
const TOKENIZER_FILE = 'assets/tokenizer.json';

/**
 * Maximum length of all texts in the encoding cache together, in UTF-16 code units. The cache then holds about a hundred long
 * conversations, which take some tens of MB with their ids.
 */
const CACHE_CHARS = 4_000_000;

/** Ids of the delimiter tokens of the simulated model. */
export type SpecialTokens = {
  readonly endOfText: number;
  readonly imStart: number;
  readonly imEnd: number;
  readonly thinkOpen: number;
  readonly thinkClose: number;
  readonly toolCallOpen: number;
  readonly toolCallClose: number;
  readonly toolResponseOpen: number;
  readonly toolResponseClose: number;
};

/**
 * The simulated model's vocabulary: a byte-level BPE in which chat, thinking and tool delimiters are single ids. The sections of text
 * between delimiters are encoded and cached separately, which gives the exact ids because no BPE merge crosses a delimiter.
 */
export class Vocabulary {
  /** Number of token ids. The valid ids are 0 to `size - 1`. */
  readonly size: number;
  readonly special: SpecialTokens;
  private readonly tokenizer: Tokenizer;
  private readonly bytesOf: readonly Uint8Array[];
  private readonly idOfDelimiter: ReadonlyMap<string, number>;
  private readonly delimiterOf: ReadonlyMap<number, string>;
  private readonly hidden: ReadonlySet<number>;
  private readonly delimiterPattern: RegExp;
  private readonly cache = new LRUCache<string, readonly number[]>({
    maxSize: CACHE_CHARS,
    sizeCalculation: (_, text) => text.length,
  });

  /**
   * Builds the vocabulary from `json`, a parsed Hugging Face tokenizer.json with a byte-level BPE and the nine delimiters of {@link
   * SpecialTokens}.
   */
  constructor(json: TokenizerFile) {
    this.tokenizer = new Tokenizer(json, {});
    this.idOfDelimiter = new Map(json.added_tokens.map((token) => [token.content, token.id]));
    this.delimiterOf = new Map(json.added_tokens.map((token) => [token.id, token.content]));
    this.hidden = new Set(json.added_tokens.filter((token) => token.special).map((token) => token.id));
    this.special = specialTokens(this.idOfDelimiter);
    const alternatives = [...this.idOfDelimiter.keys()].map((text) => text.replace(/[|\\{}()[\]^$+*?.]/g, '\\$&'));
    this.delimiterPattern = new RegExp(`(${alternatives.join('|')})`);
    this.bytesOf = bytesPerId(json);
    this.size = this.bytesOf.length;
  }

  /** Returns the token ids of `text`. The text of a delimiter becomes its single id. */
  encode(text: string): number[] {
    const ids: number[] = [];
    // Splitting by a pattern with one capture group puts the delimiters at the odd indexes.
    const pieces = text.split(this.delimiterPattern);
    for (const [index, piece] of pieces.entries()) {
      if (piece === '') continue;
      const delimiter = index % 2 === 1 ? this.idOfDelimiter.get(piece) : undefined;
      if (delimiter !== undefined) ids.push(delimiter);
      else for (const id of this.encodePlain(piece)) ids.push(id);
    }
    return ids;
  }

  /** Returns the bytes of one token. Throws `engine_rejected` for an id outside the vocabulary. */
  bytes(id: number): Uint8Array {
    const bytes = this.bytesOf[id];
    if (bytes === undefined) {
      throw new FloeError('engine_rejected', `token id ${id} is out of vocabulary (0 to ${this.size - 1})`);
    }
    return bytes;
  }

  /**
   * Returns the text of a token sequence. Bytes that are not valid UTF-8 become U+FFFD. With `skipSpecial`, turn delimiters are left out.
   */
  decode(ids: Iterable<number>, options: { readonly skipSpecial?: boolean } = {}): string {
    const parts: Uint8Array[] = [];
    for (const id of ids) {
      if (options.skipSpecial !== true || !this.isHidden(id)) parts.push(this.bytes(id));
    }
    return Buffer.concat(parts).toString('utf8');
  }

  /** Whether the id is a turn delimiter, which is left out of visible text. Thinking and tool delimiters are visible. */
  isHidden(id: number): boolean {
    return this.hidden.has(id);
  }

  isDelimiter(id: number): boolean {
    return this.delimiterOf.has(id);
  }

  has(id: number): boolean {
    return this.bytesOf[id] !== undefined;
  }

  private encodePlain(piece: string): readonly number[] {
    const cached = this.cache.get(piece);
    if (cached !== undefined) return cached;
    const ids = this.tokenizer.encode(piece, { add_special_tokens: false }).ids;
    this.cache.set(piece, ids);
    return ids;
  }
}

/** The fields of a Hugging Face tokenizer.json that the simulator uses. */
type TokenizerFile = {
  readonly added_tokens: readonly { readonly id: number; readonly content: string; readonly special: boolean }[];
  readonly model: { readonly vocab: Readonly<Record<string, number>> };
};

function specialTokens(ids: ReadonlyMap<string, number>): SpecialTokens {
  const idOf = (text: string): number => {
    const id = ids.get(text);
    if (id === undefined) throw new FloeError('setup_failed', `the tokenizer file has no token ${text}`);
    return id;
  };
  return {
    endOfText: idOf('<|endoftext|>'),
    imStart: idOf('<|im_start|>'),
    imEnd: idOf('<|im_end|>'),
    thinkOpen: idOf('<think>'),
    thinkClose: idOf('</think>'),
    toolCallOpen: idOf('<tool_call>'),
    toolCallClose: idOf('</tool_call>'),
    toolResponseOpen: idOf('<tool_response>'),
    toolResponseClose: idOf('</tool_response>'),
  };
}

/** Returns the bytes of each token, indexed by token id. */
function bytesPerId(json: TokenizerFile): Uint8Array[] {
  const byteOf = byteOfPrintable();
  const bytes: Uint8Array[] = [];
  for (const [token, id] of Object.entries(json.model.vocab)) {
    bytes[id] = Uint8Array.from(token, (char) => byteOf.get(char) ?? 0);
  }
  for (const { id, content } of json.added_tokens) bytes[id] = Buffer.from(content);
  return bytes;
}

/**
 * Maps each printable character that a byte-level vocabulary uses to the byte that it represents. A printable byte is represented by its
 * own character, and any other byte by the next unused character from U+0100 on.
 */
function byteOfPrintable(): Map<string, number> {
  const byteOf = new Map<string, number>();
  let next = 0x100;
  for (let byte = 0; byte < 0x100; byte++) {
    const printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte !== 0xad);
    byteOf.set(String.fromCharCode(printable ? byte : next++), byte);
  }
  return byteOf;
}

let shared: Vocabulary | undefined;

/** Returns the path of the `tokenizer.json` of the simulated model. */
export function bundledTokenizerPath(): string {
  return assetPath(import.meta.url, TOKENIZER_FILE);
}

/** Returns the simulated model's vocabulary, which is read once per process. Throws `setup_failed` when its file is missing. */
export function bundledVocabulary(): Vocabulary {
  if (shared === undefined) {
    const path = bundledTokenizerPath();
    let text: string;
    try {
      text = readFileSync(path, 'utf8');
    } catch (cause) {
      throw new FloeError('setup_failed', `cannot read the simulated model's tokenizer ${path}`, { path }, cause);
    }
    shared = new Vocabulary(JSON.parse(text));
  }
  return shared;
}
