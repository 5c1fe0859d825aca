import { FloeError } from '@floe-rl/core';
import { hashNumbers, hashText, uniform } from '../random.ts';
import { type TemplateMode, THINK_PREFIX, thinkBlock, toolCallText } from '../template.ts';
import type { Vocabulary } from '../vocabulary.ts';
import type { Scenario, Segment } from './scenario.ts';
import type { Weights } from './weights.ts';

/**
 * Maximum number of turns that one scenario rule can write, with one option selected for each random choice. The time to sample a token grows
 * with this number.
 */
const MAX_TURNS = 512;

/** Number of candidate words for a randomly drawn thinking token (noise token). */
const NOISE_CANDIDATES = 16;

/**
 * Width of the range from which the logits of the candidate words for a randomly drawn thinking token are drawn. The words then have
 * probabilities from about 1 to 20 percent.
 */
const NOISE_SPREAD = 3;

/**
 * Maximum difference between the logits that two policy versions give to the same candidate word. It is small compared with NOISE_SPREAD, so
 * that importance ratios stay near 1.
 */
const NOISE_SHIFT = 0.4;

/**
 * Minimum number of characters of a word that may be drawn as random thinking, including its leading space. Shorter tokens are often no
 * real words.
 */
const MIN_NOISE_CHARS = 4;

/** Value in {@link ScriptedTurn.symbols} that stands for a randomly drawn word of thinking. Every other value there is a token id. */
export const NOISE = -1;

/** One complete assistant turn that a scenario rule can write. */
export type ScriptedTurn = {
  /** Token ids of the turn, or {@link NOISE} where a random thinking token is drawn. The last symbol ends the turn. */
  readonly symbols: Int32Array;
  /** The option that is selected for each random choice of the scenario rule, in the order of the choices. `option` is the option's index. */
  readonly picks: readonly { readonly choice: string; readonly option: number }[];
};

/** All turns that one scenario rule can write. */
export type ScriptedReply = {
  readonly scenario: string;
  readonly rule: number;
  readonly turns: readonly ScriptedTurn[];
  readonly noiseKey: number;
};

type Draft = {
  readonly think: { readonly text: string; readonly noise: number } | null;
  readonly text: string;
  readonly calls: readonly string[];
  readonly raw: string;
  readonly picks: ScriptedTurn['picks'];
};

/**
 * Returns every assistant turn that a scenario rule can produce: one for each combination of its random choices. The text of a turn is encoded
 * as a whole, so that its token boundaries are the same as in the turn that the chat template renders. `malformed` leaves out the last brace
 * of each tool call.
 *
 * Throws `schema_violation` for more than {@link MAX_TURNS} turns, and for segments in an order that the template could not reproduce, such as
 * thinking after text.
 */
export function compileReply(
  vocabulary: Vocabulary,
  scenario: Scenario,
  rule: number,
  mode: TemplateMode,
  malformed = false,
): ScriptedReply {
  const path = `scenario ${scenario.name}: rules.${rule}.reply`;
  const { reply: segments = [], spelling = 'merged', end = '<|im_end|>' } = scenario.rules[rule] ?? {};
  const encode = spelling === 'merged' ? (text: string) => vocabulary.encode(text) : letterEncoder(vocabulary);
  const { imEnd, endOfText } = vocabulary.special;
  const endId = end === '<|im_end|>' ? imEnd : endOfText;
  const drafts = expand(segments, [{ think: null, text: '', calls: [], raw: '', picks: [] }], path);
  const turns = drafts.map((draft) => ({
    symbols: Int32Array.from([...encodeDraft(encode, draft, mode, malformed), endId]),
    picks: draft.picks,
  }));
  return { scenario: scenario.name, rule, turns, noiseKey: hashText(`${scenario.name}/${rule}`) };
}

function expand(segments: readonly Segment[], drafts: readonly Draft[], path: string): readonly Draft[] {
  let current = drafts;
  for (const [index, segment] of segments.entries()) {
    current = current.flatMap((draft) => extend(draft, segment, `${path}.${index}`));
    if (current.length > MAX_TURNS) {
      throw new FloeError('schema_violation', `${path}: expands to more than ${MAX_TURNS} replies`);
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
      throw new FloeError('schema_violation', `${path}: thinking must be the first segment of a reply`);
    }
    return [{ ...draft, think: segment.think }];
  }
  if (segment.text !== undefined) {
    if (draft.calls.length > 0) {
      throw new FloeError(
        'schema_violation',
        `${path}: only calls and raw text may follow a call; the conversation would lose text after it`,
      );
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

/**
 * Returns the symbols of the turn without the token that ends it. A symbol is a token id, or a negative number for a noise token, which is
 * drawn at random later. With `open_think`, the prompt already
 * contains the opening of the thinking block. The text after this opening is therefore encoded separately.
 */
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
      // The text before and after a randomly drawn word can be encoded separately: the word begins with a space and a newline follows it,
      // so no token spans either boundary.
      symbols.push(...encode(block.slice(block.length - head.length, textEnd)));
      for (let i = 0; i < think.noise; i++) symbols.push(NOISE);
      head = block.slice(textEnd);
    }
  }
  symbols.push(...encode(head + body(draft, malformed)));
  return symbols;
}

type Encode = (text: string) => readonly number[];

/** Returns an encoder that encodes every character separately; a delimiter still becomes its single id. */
function letterEncoder(vocabulary: Vocabulary): Encode {
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

/**
 * Returns in ascending order the ids of all tokens that are a whole word with a leading space. Any two of them can be adjacent without
 * being encoded differently.
 */
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
 * Returns the distribution of the noise token (a randomly drawn thinking token) at `position` of a turn, after the token `previous`. `ids` are
 * the candidates, which are the same for all policy versions. `logps` are their log-probabilities under `weights`.
 */
export function noiseDistribution(
  words: readonly number[],
  reply: ScriptedReply,
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
