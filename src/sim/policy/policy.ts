import type { TemplateMode } from '../template.ts';
import type { Vocabulary } from '../vocabulary.ts';
import { allowedLeaves, type Constraint } from './constraint.ts';
import { type Conversation, parseConversation } from './conversation.ts';
import {
  type CountCondition,
  DEFAULT_SCENARIO,
  type RuleCondition,
  type Scenario,
  type TextCondition,
} from './scenario.ts';
import { compileReply, NOISE, noiseDistribution, noiseWords, type ScriptedReply } from './scripted-reply.ts';
import { logSumExp, type Weights } from './weights.ts';

/** The possible next tokens of a reply with their true log-probabilities. Every token that is not listed has probability 0. */
export type NextToken = {
  readonly ids: readonly number[];
  readonly logps: readonly number[];
  /** For each of `ids`, whether a constraint permits it; at least one is permitted. The field is left out when all are permitted. */
  readonly permitted?: readonly boolean[];
};

const CERTAIN: readonly number[] = [0];

/**
 * The scripted policy that replaces a model. The prompt of a request selects one rule. The rule's reply is a distribution over token
 * sequences, and each next token is drawn from the true conditional distribution given all tokens before it.
 */
export class Policy {
  readonly scenarios: readonly Scenario[];
  private readonly vocabulary: Vocabulary;
  private readonly mode: TemplateMode;
  private readonly words: readonly number[];
  private readonly replies = new Map<string, ScriptedReply>();

  /** Compiles every reply of the scenarios, so that an invalid scenario is reported here. Throws `schema_violation`. */
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
   * Begins the reply to a prompt. With `malformed`, the reply's tool calls are not valid JSON, but a constraint treats them as valid. When
   * no leaf satisfies `constraint`, no token can be sampled; the caller checks this first with {@link canSatisfy}.
   */
  beginReply(promptIds: ArrayLike<number>, malformed = false, constraint: Constraint | null = null): ReplyWalk {
    const conversation = parseConversation(this.vocabulary, promptIds);
    const { scenario, rule } = this.select(conversation);
    const allowed =
      constraint === null ? null : allowedLeaves(this.vocabulary, this.reply(scenario, rule, false), constraint);
    const walk = new ReplyWalk(this.reply(scenario, rule, malformed), this.words, this.vocabulary, allowed);
    for (const id of conversation.openTurn) walk.advance(id);
    return walk;
  }

  /** Whether the reply to a prompt can satisfy `constraint`. Throws `engine_rejected` for a schema that cannot be used. */
  canSatisfy(promptIds: ArrayLike<number>, constraint: Constraint): boolean {
    return this.beginReply(promptIds, false, constraint).canContinue;
  }

  /** Returns the scenario and the index of its rule that reply to a conversation. */
  select(conversation: Conversation): { readonly scenario: Scenario; readonly rule: number } {
    for (const scenario of this.scenarios) {
      if (scenario.match !== undefined && !textHolds(scenario.match, conversation.firstUser)) continue;
      const rule = scenario.rules.findIndex(({ when }) => ruleHolds(when, conversation));
      if (rule >= 0) return { scenario, rule };
    }
    return { scenario: DEFAULT_SCENARIO, rule: 0 };
  }

  private reply(scenario: Scenario, rule: number, malformed: boolean): ScriptedReply {
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
 * The state of one reply during sampling. It holds the leaves (turns that the rule can write) that agree with the tokens so far, each with
 * the log of its joint probability with these tokens. The probability of a next token is the share of the leaves that continue with it.
 * Leaves that a constraint forbids count in the probabilities, but a token with which only forbidden leaves continue is not permitted.
 */
export class ReplyWalk {
  readonly reply: ScriptedReply;
  private readonly words: readonly number[];
  private readonly vocabulary: Vocabulary;
  /** Tokens of the turn so far, including those of the turn that the prompt left open. */
  private readonly turn: number[] = [];
  private live: { readonly leaf: number; logWeight: number }[];
  /** The weights with which `logWeight` was computed; `null` before the first computation. */
  private weights: Weights | null = null;
  private readonly scripted: boolean;
  /** For each leaf (a turn that the rule can write), whether the constraint allows it; `null` when the reply has no constraint. */
  private readonly allowed: readonly boolean[] | null;

  constructor(
    reply: ScriptedReply,
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

  /** Whether at least one leaf (a turn that the rule can write) agrees with the turn so far and is allowed by the constraint. */
  get canContinue(): boolean {
    return this.live.some(({ leaf }) => this.allowed?.[leaf] ?? true);
  }

  /** Returns the distribution of the next token under `weights`. After the end of the turn, the next token is end-of-text. */
  next(weights: Weights): NextToken {
    const only = this.live.length === 1 ? this.live[0] : undefined;
    if (only !== undefined) {
      const symbol = this.symbol(only.leaf, this.turn.length);
      return symbol === NOISE ? this.noise(this.turn.length, weights) : { ids: [symbol], logps: CERTAIN };
    }
    if (this.live.length === 0) return { ids: [this.offScript()], logps: CERTAIN };
    if (this.weights !== weights) this.recomputeLogWeights(weights);
    return this.mixture(weights);
  }

  /** Appends `id` to the turn, whether or not the policy could have sampled it. Drops the leaves that do not agree with it. */
  advance(id: number): void {
    const position = this.turn.length;
    const weights = this.weights;
    let noise: NextToken | undefined;
    this.live = this.live.filter((entry) => {
      const symbol = this.symbol(entry.leaf, position);
      if (symbol !== NOISE) return symbol === id;
      // The candidates of a noise token do not depend on the weights, so NO_WEIGHTS gives the same ids. next() recomputes the joint
      // probabilities when there are no weights yet.
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

  /** Returns the token that ends the turn when the prompt began the turn with text that no reply of the rule has. */
  private offScript(): number {
    const { imEnd, endOfText } = this.vocabulary.special;
    return this.scripted && this.turn.at(-1) !== imEnd && this.turn.at(-1) !== endOfText ? imEnd : endOfText;
  }

  /**
   * Recomputes, under `weights`, the joint log-probability of each remaining leaf (a turn that the rule can write) with the turn so far.
   */
  private recomputeLogWeights(weights: Weights): void {
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

  /** Returns the distribution of the next token when several leaves (turns that the rule can write) agree with the turn so far. */
  private mixture(weights: Weights): NextToken {
    const position = this.turn.length;
    const logWeightsOf = new Map<number, number[]>();
    const addShare = (id: number, logWeight: number): void => {
      const logWeights = logWeightsOf.get(id);
      if (logWeights === undefined) logWeightsOf.set(id, [logWeight]);
      else logWeights.push(logWeight);
    };
    let noise: NextToken | undefined;
    for (const { leaf, logWeight } of this.live) {
      const symbol = this.symbol(leaf, position);
      if (symbol !== NOISE) {
        addShare(symbol, logWeight);
        continue;
      }
      noise ??= this.noise(position, weights);
      for (const [index, id] of noise.ids.entries()) addShare(id, logWeight + (noise.logps[index] as number));
    }
    const ids = [...logWeightsOf.keys()];
    if (ids.length === 1) return { ids, logps: CERTAIN };
    const total = logSumExp(this.live.map(({ logWeight }) => logWeight));
    const logps = ids.map((id) => logSumExp(logWeightsOf.get(id) ?? []) - total);
    return this.allowed === null ? { ids, logps } : { ids, logps, permitted: this.permitted(ids, noise) };
  }

  /**
   * Returns for each of `ids` whether a leaf that the constraint allows continues with it. `noise` is the distribution of a randomly drawn
   * thinking token at this position.
   */
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

/**
 * Weights with which the candidate ids of a noise token (a randomly drawn thinking token) are computed; these ids are the same for all
 * weights.
 */
const NO_WEIGHTS: Weights = { version: '', logits: {}, noiseSalt: 0 };
