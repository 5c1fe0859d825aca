import { FloeError } from '../core/errors.ts';
import { hashNumbers, hashText, uniform } from './random.ts';
import type { Scenario, Segment } from './scenario.ts';
import { type TemplateMode, THINK_PREFIX, thinkBlock, toolCallText } from './template.ts';
import type { Vocabulary } from './vocabulary.ts';
import type { Weights } from './weights.ts';

/** Leaves that one turn may have: the product of the options of all its choices. Each costs a pass per token. */
const MAX_LEAVES = 512;

/** Candidates of a noise token. */
export const NOISE_CANDIDATES = 16;

/** Spread of a noise token's logits over its candidates: gives probabilities from about 1 to 20 percent. */
const NOISE_SPREAD = 3;

/** How far two versions differ at a noise token, small beside the spread: importance ratios stay near 1. */
const NOISE_SHIFT = 0.4;

/** Shortest noise word in characters, blank included, so that noise looks like words. */
const MIN_NOISE_CHARS = 4;

/** In a leaf's symbols, a noise token; every other symbol is the token id itself. */
export const NOISE = -1;

/** One complete way to write an assistant turn. */
export type Leaf = {
  /** Token ids, or {@link NOISE}. The last is the turn's end. */
  readonly symbols: Int32Array;
  /** The options taken, in order. */
  readonly picks: readonly { readonly choice: string; readonly option: number }[];
};

/** All ways to write one turn. */
export type Reply = {
  readonly scenario: string;
  readonly rule: number;
  readonly leaves: readonly Leaf[];
  readonly noiseKey: number;
};

type Draft = {
  readonly think: { readonly text: string; readonly noise: number } | null;
  readonly text: string;
  readonly calls: readonly string[];
  readonly raw: string;
  readonly picks: Leaf['picks'];
};

/**
 * Writes out every leaf of a rule's reply and encodes each as a whole turn, so that token boundaries are those that
 * the template would give. `malformed` leaves out the last brace of each tool call.
 * Throws `schema_violation` for more than {@link MAX_LEAVES} leaves, or thinking that is not at the beginning.
 */
export function compileReply(
  vocabulary: Vocabulary,
  scenario: Scenario,
  rule: number,
  mode: TemplateMode,
  malformed = false,
): Reply {
  const path = `scenario ${scenario.name}: rules.${rule}.reply`;
  const { reply: segments = [], spelling = 'merged', end = '<|im_end|>' } = scenario.rules[rule] ?? {};
  const encode = spelling === 'merged' ? (text: string) => vocabulary.encode(text) : lettersOf(vocabulary);
  const { imEnd, endOfText } = vocabulary.special;
  const endId = end === '<|im_end|>' ? imEnd : endOfText;
  const drafts = expand(segments, [{ think: null, text: '', calls: [], raw: '', picks: [] }], path);
  const leaves = drafts.map((draft) => ({
    symbols: Int32Array.from([...encodeDraft(encode, draft, mode, malformed), endId]),
    picks: draft.picks,
  }));
  return { scenario: scenario.name, rule, leaves, noiseKey: hashText(`${scenario.name}/${rule}`) };
}

function expand(segments: readonly Segment[], drafts: readonly Draft[], path: string): readonly Draft[] {
  let current = drafts;
  for (const [index, segment] of segments.entries()) {
    current = current.flatMap((draft) => extend(draft, segment, `${path}.${index}`));
    if (current.length > MAX_LEAVES) {
      throw new FloeError('schema_violation', `${path}: has more than ${MAX_LEAVES} ways to be written`);
    }
  }
  return current;
}

function extend(draft: Draft, segment: Segment, path: string): readonly Draft[] {
  if (draft.raw !== '' && segment.raw === undefined && segment.choice === undefined) {
    throw new FloeError('schema_violation', `${path}: only raw text may follow raw text`);
  }
  if (segment.think !== undefined) {
    if (draft.think !== null || draft.text !== '' || draft.calls.length > 0) {
      throw new FloeError('schema_violation', `${path}: thinking must be the first thing of a reply`);
    }
    return [{ ...draft, think: segment.think }];
  }
  if (segment.text !== undefined) {
    if (draft.calls.length > 0) {
      throw new FloeError('schema_violation', `${path}: text after a call would be lost in the conversation`);
    }
    return [{ ...draft, text: draft.text + segment.text }];
  }
  if (segment.call !== undefined) {
    const call = toolCallText(segment.call.tool, JSON.stringify(segment.call.arguments));
    return [{ ...draft, calls: [...draft.calls, call] }];
  }
  if (segment.raw !== undefined) return [{ ...draft, raw: draft.raw + segment.raw }];
  if (segment.choice === undefined) return [draft];
  const { id, options } = segment.choice;
  return options.flatMap((option, index) =>
    expand(option.reply, [{ ...draft, picks: [...draft.picks, { choice: id, option: index }] }], path),
  );
}

/** The turn's symbols but for its end. With `open_think` the prompt already holds the opening, so the rest is encoded by itself. */
function encodeDraft(encode: Encode, draft: Draft, mode: TemplateMode, malformed: boolean): number[] {
  const symbols: number[] = [];
  const think = draft.think ?? (mode === 'open_think' ? { text: '', noise: 0 } : null);
  let head = '';
  if (think !== null) {
    const block = thinkBlock(think.text);
    const textEnd = THINK_PREFIX.length + think.text.length;
    head = block;
    if (mode === 'open_think') {
      symbols.push(...encode(THINK_PREFIX));
      head = block.slice(THINK_PREFIX.length);
    }
    if (think.noise > 0) {
      // A noise word begins with a blank and is followed by a newline, so it neither merges with what is before nor after.
      symbols.push(...encode(block.slice(block.length - head.length, textEnd)));
      for (let i = 0; i < think.noise; i++) symbols.push(NOISE);
      head = block.slice(textEnd);
    }
  }
  symbols.push(...encode(head + body(draft, malformed)));
  return symbols;
}

type Encode = (text: string) => readonly number[];

/** Delimiters stay what they are; every other character is encoded by itself. */
function lettersOf(vocabulary: Vocabulary): Encode {
  return (text) =>
    text
      .split(/(<\/?(?:think|tool_call)>)/)
      .flatMap((part, index) => (index % 2 === 1 ? [part] : [...part]))
      .flatMap((part) => vocabulary.encode(part));
}

function body({ text, calls, raw }: Draft, malformed: boolean): string {
  if (calls.length === 0) return text + raw;
  const written = malformed ? calls.map((call) => call.replace(/\}\n<\/tool_call>$/, '\n</tool_call>')) : calls;
  const before = text.trim() === '' ? '' : `${text.replace(/\n+$/, '')}\n`;
  return before + written.join('\n') + raw;
}

/** Words that are one token each and stay so beside each other, in id order. */
export function noiseWords(vocabulary: Vocabulary): readonly number[] {
  const words: number[] = [];
  for (let id = 0; id < vocabulary.size; id++) {
    if (vocabulary.isDelimiter(id)) continue;
    const text = vocabulary.decode([id]);
    if (text.length >= MIN_NOISE_CHARS && /^ [a-z]+$/.test(text) && vocabulary.encode(text).length === 1)
      words.push(id);
  }
  return words;
}

/**
 * Distribution of the noise token at `position` of a turn after `previous`: candidate ids, the same for all versions,
 * and the logarithms of their probabilities under `weights`.
 */
export function noiseDistribution(
  words: readonly number[],
  reply: Reply,
  position: number,
  previous: number,
  weights: Weights,
): { readonly ids: number[]; readonly logps: number[] } {
  const key = hashNumbers(reply.noiseKey, position, previous);
  const stride = 1 + (key % (Math.floor(words.length / NOISE_CANDIDATES) - 1));
  const start = hashNumbers(key, 1) % words.length;
  const ids: number[] = [];
  const logits: number[] = [];
  let total = 0;
  for (let i = 0; i < NOISE_CANDIDATES; i++) {
    ids.push(words[(start + i * stride) % words.length] as number);
    const logit = NOISE_SPREAD * uniform(key, 2, i) + NOISE_SHIFT * uniform(key, 3, i, weights.noiseSalt);
    logits.push(logit);
    total += Math.exp(logit);
  }
  const logTotal = Math.log(total);
  return { ids, logps: logits.map((logit) => logit - logTotal) };
}
