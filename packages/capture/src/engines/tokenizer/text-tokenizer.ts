import { Tokenizer } from '@huggingface/tokenizers';
import { LRUCache } from 'lru-cache';
import { z } from 'zod';

/**
 * Maximum length of all texts in the encoding cache together, in UTF-16 code units. The cache then holds the system prompts and tools of
 * many harnesses and the latest sections of about a hundred conversations, in some tens of MB with their ids.
 */
const CACHE_CHARS = 4_000_000;

/** Character that a decoder returns for bytes that are not a complete character. */
const REPLACEMENT = '\ufffd';
/** Maximum number of ids of one character: one for each byte of its UTF-8 form. */
const MAX_IDS_OF_CHARACTER = 4;

const addedTokenSchema = z.looseObject({
  id: z.int().min(0),
  content: z.string(),
  lstrip: z.boolean().nullish(),
  rstrip: z.boolean().nullish(),
  single_word: z.boolean().nullish(),
  normalized: z.boolean().nullish(),
});

/** The parts of a Hugging Face `tokenizer.json` that floe reads itself. */
export const tokenizerJsonSchema = z.looseObject({
  added_tokens: z.array(addedTokenSchema),
  model: z.looseObject({ vocab: z.unknown() }),
  pre_tokenizer: z.unknown().optional(),
  normalizer: z.unknown().optional(),
});
export type TokenizerJson = z.output<typeof tokenizerJsonSchema>;

/** Pre-tokenizers whose result for a section does not depend on where the section is in the text. */
const LOCAL_PRE_TOKENIZERS = new Set(['ByteLevel', 'Split', 'Digits', 'Punctuation']);

/**
 * Converts text to token ids and back. The sections of text between special tokens are encoded and cached separately, where the tokenizer
 * allows it, because all sessions of a harness have the same long first section.
 */
export class TextTokenizer {
  private readonly tokenizer: Tokenizer;
  private readonly addedIds: ReadonlyMap<string, number>;
  /** Matches the special tokens at which text is split; `null` when the text must be encoded as a whole. */
  private readonly splitter: RegExp | null;
  private readonly cache = new LRUCache<string, readonly number[]>({
    maxSize: CACHE_CHARS,
    sizeCalculation: (_, text) => text.length,
  });

  /** `config` is the parsed `tokenizer_config.json`. Throws an Error for a tokenizer of an unknown type. */
  constructor(json: TokenizerJson, config: object) {
    this.tokenizer = new Tokenizer(json, config);
    this.addedIds = new Map(json.added_tokens.map(({ content, id }) => [content, id]));
    this.splitter = splitterOf(json);
  }

  /** Returns the id of a token that is given by its text; `null` when the vocabulary lacks it. */
  idOf(token: string): number | null {
    return this.addedIds.get(token) ?? this.tokenizer.token_to_id(token) ?? null;
  }

  /** Returns the ids of a rendered conversation. Special tokens in the text are recognised, and no special token is added. */
  encode(text: string): Int32Array {
    if (this.splitter === null) return Int32Array.from(this.encodeSection(text));
    const ids: number[] = [];
    // Splitting by a pattern with one capture group puts the special tokens at the odd indexes.
    for (const [index, piece] of text.split(this.splitter).entries()) {
      const special = index % 2 === 1 ? this.addedIds.get(piece) : undefined;
      if (special !== undefined) ids.push(special);
      else if (piece !== '') for (const id of this.encodeSection(piece)) ids.push(id);
    }
    return Int32Array.from(ids);
  }

  /** Returns the text of ids, with the text of special tokens. Bytes that are not valid UTF-8 become U+FFFD. */
  decode(ids: Int32Array): string {
    if (ids.length === 0) return '';
    return this.tokenizer.decode([...ids], { skip_special_tokens: false, clean_up_tokenization_spaces: false });
  }

  /**
   * Returns the text of each id. When a character consists of several ids, its last id has the character, and its other ids have an empty
   * text.
   */
  pieces(ids: Int32Array): string[] {
    const pieces: string[] = [];
    let open: number[] = [];
    for (const id of ids) {
      open.push(id);
      const text = this.decode(Int32Array.from(open));
      const isOpen = text.endsWith(REPLACEMENT) && open.length < MAX_IDS_OF_CHARACTER;
      pieces.push(isOpen ? '' : text);
      if (!isOpen) open = [];
    }
    if (open.length > 0) pieces[pieces.length - 1] = this.decode(Int32Array.from(open));
    return pieces;
  }

  private encodeSection(section: string): readonly number[] {
    const cached = this.cache.get(section);
    if (cached !== undefined) return cached;
    const { ids } = this.tokenizer.encode(section, { add_special_tokens: false });
    if (section !== '' && section.length <= CACHE_CHARS) this.cache.set(section, ids);
    return ids;
  }
}

/**
 * Returns the pattern of the special tokens of a tokenizer that encodes the sections between them independently of each other. Returns `null`
 * for any other tokenizer, for example a tokenizer that writes a space in front of the whole text.
 */
function splitterOf({ added_tokens: tokens, pre_tokenizer: preTokenizer }: TokenizerJson): RegExp | null {
  const separate = tokens.filter(({ normalized, content }) => normalized !== true && content !== '');
  const isPlain = separate.every(({ lstrip, rstrip, single_word }) => !lstrip && !rstrip && !single_word);
  if (separate.length === 0 || !isPlain || !isLocal(preTokenizer)) return null;
  const longestFirst = separate.map(({ content }) => content).sort((a, b) => b.length - a.length);
  return new RegExp(`(${longestFirst.map((text) => text.replace(/[|\\{}()[\]^$+*?.]/g, '\\$&')).join('|')})`);
}

const preTokenizerSchema = z.looseObject({
  type: z.string(),
  add_prefix_space: z.boolean().nullish(),
  pretokenizers: z.array(z.unknown()).nullish(),
});

function isLocal(preTokenizer: unknown): boolean {
  const parsed = preTokenizerSchema.safeParse(preTokenizer);
  if (!parsed.success) return false;
  const { type, add_prefix_space: prefix, pretokenizers } = parsed.data;
  if (type === 'Sequence') return (pretokenizers ?? []).every(isLocal);
  return LOCAL_PRE_TOKENIZERS.has(type) && prefix !== true;
}
