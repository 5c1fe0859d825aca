import { allowedLeaves, type Constraint } from './constraint.ts';
import { type Conversation, readPrompt } from './prompt.ts';
import { compileReply, NOISE, noiseDistribution, noiseWords, type Reply } from './reply.ts';
import {
  type CountCondition,
  DEFAULT_SCENARIO,
  type RuleCondition,
  type Scenario,
  type TextCondition,
} from './scenario.ts';
import type { TemplateMode } from './template.ts';
import type { Vocabulary } from './vocabulary.ts';
import { logSumExp, type Weights } from './weights.ts';

/** Where a reply stands: the possible next tokens and the logarithms of their true probabilities; all others have 0. */
export type NextToken = {
  readonly ids: readonly number[];
  readonly logps: readonly number[];
  /** Which of them a constraint lets through, at least one; without it, all. */
  readonly permitted?: readonly boolean[];
};

const CERTAIN: readonly number[] = [0];

/**
 * The scripted agent. A request selects one rule by its prompt alone; the rule's reply is a distribution over token
 * sequences, and each next token is drawn from its true conditional distribution given all tokens before it.
 */
export class Policy {
  readonly scenarios: readonly Scenario[];
  private readonly vocabulary: Vocabulary;
  private readonly mode: TemplateMode;
  private readonly words: readonly number[];
  private readonly replies = new Map<string, Reply>();

  /** Compiles every reply, so that a scenario that cannot be compiled fails here. Throws `schema_violation`. */
  constructor(vocabulary: Vocabulary, scenarios: readonly Scenario[], mode: TemplateMode) {
    this.vocabulary = vocabulary;
    this.mode = mode;
    this.words = noiseWords(vocabulary);
    this.scenarios = scenarios.some(({ name }) => name === DEFAULT_SCENARIO.name)
      ? scenarios
      : [...scenarios, DEFAULT_SCENARIO];
    for (const scenario of this.scenarios) {
      for (const rule of scenario.rules.keys()) this.reply(scenario, rule, false);
    }
  }

  /**
   * The reply's beginning for a prompt. `malformed` writes tool calls that are no JSON; a constraint judges them as they
   * would have been. A `constraint` that no leaf satisfies leaves nothing to write: ask {@link admits} first.
   */
  begin(promptIds: ArrayLike<number>, malformed = false, constraint: Constraint | null = null): ReplyWalk {
    const conversation = readPrompt(this.vocabulary, promptIds);
    const { scenario, rule } = this.select(conversation);
    const allowed =
      constraint === null ? null : allowedLeaves(this.vocabulary, this.reply(scenario, rule, false), constraint);
    const walk = new ReplyWalk(this.reply(scenario, rule, malformed), this.words, this.vocabulary, allowed);
    for (const id of conversation.openTurn) walk.advance(id);
    return walk;
  }

  /** Whether the reply to a prompt can satisfy `constraint`. Throws `engine_rejected` for an unusable schema. */
  admits(promptIds: ArrayLike<number>, constraint: Constraint): boolean {
    return this.begin(promptIds, false, constraint).canGoOn;
  }

  /** The scenario and rule that answer a conversation. */
  select(conversation: Conversation): { readonly scenario: Scenario; readonly rule: number } {
    for (const scenario of this.scenarios) {
      if (scenario.match !== undefined && !textHolds(scenario.match, conversation.firstUser)) continue;
      const rule = scenario.rules.findIndex(({ when }) => ruleHolds(when, conversation));
      if (rule >= 0) return { scenario, rule };
    }
    return { scenario: DEFAULT_SCENARIO, rule: 0 };
  }

  private reply(scenario: Scenario, rule: number, malformed: boolean): Reply {
    const key = `${scenario.name}/${rule}/${malformed}`;
    let reply = this.replies.get(key);
    if (reply === undefined) {
      reply = compileReply(this.vocabulary, scenario, rule, this.mode, malformed);
      this.replies.set(key, reply);
    }
    return reply;
  }
}

function textHolds(condition: TextCondition, text: string): boolean {
  if (condition.contains !== undefined && !text.includes(condition.contains)) return false;
  return condition.regex === undefined || new RegExp(condition.regex, 'su').test(text);
}

function countHolds(condition: CountCondition, count: number): boolean {
  return count >= (condition.min ?? 0) && count <= (condition.max ?? Number.POSITIVE_INFINITY);
}

function ruleHolds(when: RuleCondition, conversation: Conversation): boolean {
  if (when.assistant_turns !== undefined && !countHolds(when.assistant_turns, conversation.assistantTurns))
    return false;
  if (when.last_role !== undefined && when.last_role !== conversation.lastRole) return false;
  if (when.last_user !== undefined && !textHolds(when.last_user, conversation.lastUser)) return false;
  if (when.system !== undefined && !textHolds(when.system, conversation.system)) return false;
  if (when.last_tool_result !== undefined) {
    const result = conversation.lastToolResult;
    if (result === null || !textHolds(when.last_tool_result, result)) return false;
  }
  if (when.images !== undefined && !countHolds(when.images, conversation.images)) return false;
  return (when.tools ?? []).every((tool) => conversation.tools.includes(tool));
}

/**
 * One reply in the making. Holds the leaves that agree with the tokens so far and the logarithm of each one's joint
 * probability with those tokens; the next token's probability is the share of the leaves that go on with it. Leaves
 * that a constraint forbids count in the probabilities, but a token that only they go on with is not permitted.
 */
export class ReplyWalk {
  readonly reply: Reply;
  private readonly words: readonly number[];
  private readonly vocabulary: Vocabulary;
  /** Tokens of the turn so far, those that the prompt began it with included. */
  private readonly turn: number[] = [];
  private live: { readonly leaf: number; logWeight: number }[];
  /** Weights that `logWeight` was computed with. */
  private weights: Weights | null = null;
  private readonly scripted: boolean;
  /** By leaf; null: no constraint. */
  private readonly allowed: readonly boolean[] | null;

  constructor(
    reply: Reply,
    words: readonly number[],
    vocabulary: Vocabulary,
    allowed: readonly boolean[] | null = null,
  ) {
    this.allowed = allowed;
    this.reply = reply;
    this.words = words;
    this.vocabulary = vocabulary;
    this.live = reply.leaves.map((_, leaf) => ({ leaf, logWeight: 0 }));
    this.scripted = reply.leaves.length > 0;
  }

  /** Whether a leaf that may be written agrees with the turn so far. */
  get canGoOn(): boolean {
    return this.live.some(({ leaf }) => this.allowed?.[leaf] ?? true);
  }

  /** Distribution of the next token under `weights`. A finished turn goes on with end-of-text. */
  next(weights: Weights): NextToken {
    const only = this.live.length === 1 ? this.live[0] : undefined;
    if (only !== undefined) {
      const symbol = this.symbol(only.leaf, this.turn.length);
      return symbol === NOISE ? this.noise(this.turn.length, weights) : { ids: [symbol], logps: CERTAIN };
    }
    if (this.live.length === 0) return { ids: [this.offScript()], logps: CERTAIN };
    if (this.weights !== weights) this.weigh(weights);
    return this.mixture(weights);
  }

  /** Takes `id` as the next token, whether or not the policy could have written it. */
  advance(id: number): void {
    const position = this.turn.length;
    const weights = this.weights;
    let noise: NextToken | undefined;
    this.live = this.live.filter((entry) => {
      const symbol = this.symbol(entry.leaf, position);
      if (symbol !== NOISE) return symbol === id;
      // Which ids are candidates does not depend on the weights; without weights the joint is computed when asked for.
      noise ??= this.noise(position, weights ?? NO_WEIGHTS);
      const index = noise.ids.indexOf(id);
      if (index >= 0) entry.logWeight += noise.logps[index] as number;
      return index >= 0;
    });
    this.turn.push(id);
  }

  private symbol(leaf: number, position: number): number {
    return this.reply.leaves[leaf]?.symbols[position] ?? this.vocabulary.special.endOfText;
  }

  private noise(position: number, weights: Weights): NextToken {
    return noiseDistribution(this.words, this.reply, position, this.turn[position - 1] ?? -1, weights);
  }

  /** A turn that the prompt began in words that no leaf has: the model ends it. */
  private offScript(): number {
    const { imEnd, endOfText } = this.vocabulary.special;
    return this.scripted && this.turn.at(-1) !== imEnd && this.turn.at(-1) !== endOfText ? imEnd : endOfText;
  }

  /** Joint log-probabilities of the live leaves and the turn so far, anew under `weights`. */
  private weigh(weights: Weights): void {
    for (const entry of this.live) {
      const leaf = this.reply.leaves[entry.leaf];
      let logWeight = 0;
      for (const { choice, option } of leaf?.picks ?? []) {
        const logits = weights.logits[this.reply.scenario]?.[choice] ?? [];
        logWeight += (logits[option] ?? 0) - logSumExp(logits);
      }
      for (const [position, id] of this.turn.entries()) {
        if (leaf?.symbols[position] !== NOISE) continue;
        const noise = this.noise(position, weights);
        logWeight += noise.logps[noise.ids.indexOf(id)] as number;
      }
      entry.logWeight = logWeight;
    }
    this.weights = weights;
  }

  private mixture(weights: Weights): NextToken {
    const position = this.turn.length;
    const shares = new Map<number, number[]>();
    const share = (id: number, logWeight: number): void => {
      const known = shares.get(id);
      if (known === undefined) shares.set(id, [logWeight]);
      else known.push(logWeight);
    };
    let noise: NextToken | undefined;
    for (const { leaf, logWeight } of this.live) {
      const symbol = this.symbol(leaf, position);
      if (symbol !== NOISE) {
        share(symbol, logWeight);
        continue;
      }
      noise ??= this.noise(position, weights);
      for (const [index, id] of noise.ids.entries()) share(id, logWeight + (noise.logps[index] as number));
    }
    const ids = [...shares.keys()];
    if (ids.length === 1) return { ids, logps: CERTAIN };
    const total = logSumExp(this.live.map(({ logWeight }) => logWeight));
    const logps = ids.map((id) => logSumExp(shares.get(id) ?? []) - total);
    return this.allowed === null ? { ids, logps } : { ids, logps, permitted: this.permitted(ids, noise) };
  }

  /** Which of `ids` a leaf that may be written goes on with. `noise` is what a noise token could be here. */
  private permitted(ids: readonly number[], noise: NextToken | undefined): readonly boolean[] {
    const position = this.turn.length;
    const reachable = new Set<number>();
    for (const { leaf } of this.live) {
      if (this.allowed?.[leaf] !== true) continue;
      const symbol = this.symbol(leaf, position);
      if (symbol !== NOISE) reachable.add(symbol);
      else for (const id of noise?.ids ?? []) reachable.add(id);
    }
    return ids.map((id) => reachable.has(id));
  }
}

/** Stands in where only the candidates of a noise token matter. */
const NO_WEIGHTS: Weights = { version: '', logits: {}, noiseSalt: 0 };
