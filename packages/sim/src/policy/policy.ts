import type { TemplateMode } from '../template.ts';
import type { Vocabulary } from '../vocabulary.ts';
import { allowedTurns, type Constraint, constrainedFrom } from './constraint.ts';
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
 * The scripted policy that replaces a model. The prompt of a request selects one rule of a scenario. The reply of this scenario rule is a
 * distribution over token sequences, and each next token is drawn from the true conditional distribution given all tokens before it.
 */
export class Policy {
  readonly scenarios: readonly Scenario[];
  private readonly vocabulary: Vocabulary;
  private readonly mode: TemplateMode;
  private readonly words: readonly number[];
  private readonly replies = new Map<string, ScriptedReply>();

  /** Compiles every reply of the scenarios in advance. Throws `schema_violation` for an invalid scenario. */
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
   * Begins the reply to a prompt. With `malformed`, the reply's tool calls are not valid JSON, but the check of `constraint` treats them as
   * valid. When no turn that the scenario rule can write satisfies `constraint`, no token can be sampled; the caller must check this first
   * with {@link canSatisfy}.
   */
  beginReply(promptIds: ArrayLike<number>, malformed = false, constraint: Constraint | null = null): ReplyWalk {
    const conversation = parseConversation(this.vocabulary, promptIds);
    const { scenario, rule } = this.select(conversation);
    const allowed =
      constraint === null
        ? null
        : allowedTurns(
            this.vocabulary,
            this.reply(scenario, rule, false),
            constraint,
            constrainedFrom(this.vocabulary, conversation.openTurn),
          );
    const walk = new ReplyWalk(this.reply(scenario, rule, malformed), this.words, this.vocabulary, allowed);
    for (const id of conversation.openTurn) walk.advance(id);
    return walk;
  }

  /** Whether the reply to a prompt can satisfy `constraint`. Throws `engine_rejected` for a schema that cannot be checked. */
  canSatisfy(promptIds: ArrayLike<number>, constraint: Constraint): boolean {
    return this.beginReply(promptIds, false, constraint).canContinue;
  }

  /** Returns the scenario that replies to a conversation, and the index of the scenario rule that matches the conversation. */
  select(conversation: Conversation): { readonly scenario: Scenario; readonly rule: number } {
    for (const scenario of this.scenarios) {
      if (scenario.match !== undefined && !textHolds(scenario.match, conversation.firstUser)) continue;
      const rule = scenario.rules.findIndex(({ when }) => ruleHolds(when, conversation));
      if (rule >= 0) return { scenario, rule };
    }
    return { scenario: DEFAULT_SCENARIO, rule: 0 };
  }

  /** Returns everything that each rule of the scenarios named `scenario`, or of all scenarios, can write. */
  scriptedReplies(scenario: string | null = null): readonly ScriptedReply[] {
    return this.scenarios
      .filter(({ name }) => scenario === null || name === scenario)
      .flatMap((one) => one.rules.map((_, rule) => this.reply(one, rule, false)));
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
 * The state of one reply during sampling. It keeps the scripted turns that begin with the tokens so far, each with a weight. The weight is the
 * probability of choosing this turn, times the probability of the random words in it so far. The probability of a token is the share of the
 * weights of the turns that continue with it. Turns that a constraint forbids count in the probabilities, but a token is not permitted when
 * only forbidden turns continue with it.
 */
export class ReplyWalk {
  readonly reply: ScriptedReply;
  private readonly words: readonly number[];
  private readonly vocabulary: Vocabulary;
  /** Tokens of the turn so far. Tokens of the turn that the prompt left open are included. */
  private readonly turn: number[] = [];
  /** The scripted turns that agree with the turn so far, each as its index in {@link ScriptedReply.turns}. */
  private live: { readonly index: number; logWeight: number }[];
  /** The weights that `logWeight` was computed with; `null` before the first computation. */
  private weights: Weights | null = null;
  private readonly scripted: boolean;
  /** For each scripted turn of the reply, whether the constraint allows it; `null` when the reply has no constraint. */
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
    this.live = reply.turns.map((_, index) => ({ index, logWeight: 0 }));
    this.scripted = reply.turns.length > 0;
  }

  /** Whether the constraint allows at least one scripted turn that begins with the tokens so far. */
  get canContinue(): boolean {
    return this.live.some(({ index }) => this.allowed?.[index] ?? true);
  }

  /** Returns the distribution of the next token under `weights`. After the end of the turn, the next token is end-of-text. */
  next(weights: Weights): NextToken {
    const only = this.live.length === 1 ? this.live[0] : undefined;
    if (only !== undefined) {
      const symbol = this.symbol(only.index, this.turn.length);
      return symbol === NOISE ? this.noise(this.turn.length, weights) : { ids: [symbol], logps: CERTAIN };
    }
    if (this.live.length === 0) return { ids: [this.offScript()], logps: CERTAIN };
    if (this.weights !== weights) this.recomputeLogWeights(weights);
    return this.mixture(weights);
  }

  /**
   * Appends `id` to the turn. From now on, only the scripted turns that have `id` at this position are candidates. When the policy could not
   * have sampled `id`, no candidate is left.
   */
  advance(id: number): void {
    const position = this.turn.length;
    const weights = this.weights;
    let noise: NextToken | undefined;
    this.live = this.live.filter((entry) => {
      const symbol = this.symbol(entry.index, position);
      if (symbol !== NOISE) return symbol === id;
      // The candidates of a noise token (a randomly drawn thinking token) are the same for all weights, so NO_WEIGHTS can be used while
      // there are no weights yet. Their probabilities differ, but next() recomputes all of them when it first gets weights.
      noise ??= this.noise(position, weights ?? NO_WEIGHTS);
      const index = noise.ids.indexOf(id);
      if (index >= 0) entry.logWeight += noise.logps[index] as number;
      return index >= 0;
    });
    this.turn.push(id);
  }

  private symbol(index: number, position: number): number {
    return this.reply.turns[index]?.symbols[position] ?? this.vocabulary.special.endOfText;
  }

  private noise(position: number, weights: Weights): NextToken {
    return noiseDistribution(this.words, this.reply, position, this.turn[position - 1] ?? -1, weights);
  }

  /**
   * Returns the token that ends the turn. This method is used when the prompt already contains the first tokens of the assistant turn, and no
   * reply of the scenario begins with these tokens.
   */
  private offScript(): number {
    const { imEnd, endOfText } = this.vocabulary.special;
    return this.scripted && this.turn.at(-1) !== imEnd && this.turn.at(-1) !== endOfText ? imEnd : endOfText;
  }

  /**
   * Recomputes `logWeight` of each scripted turn that is left, under `weights`: the log-probability of choosing this turn, plus the
   * log-probability of the random words in it so far.
   */
  private recomputeLogWeights(weights: Weights): void {
    for (const entry of this.live) {
      const scripted = this.reply.turns[entry.index];
      let logWeight = 0;
      for (const { choice, option } of scripted?.picks ?? []) {
        const logits = weights.logits[this.reply.scenario]?.[choice] ?? [];
        logWeight += (logits[option] ?? 0) - logSumExp(logits);
      }
      for (const [position, id] of this.turn.entries()) {
        if (scripted?.symbols[position] !== NOISE) continue;
        const noise = this.noise(position, weights);
        logWeight += noise.logps[noise.ids.indexOf(id)] as number;
      }
      entry.logWeight = logWeight;
    }
    this.weights = weights;
  }

  /** Returns the distribution of the next token when several scripted turns begin with the tokens so far. */
  private mixture(weights: Weights): NextToken {
    const position = this.turn.length;
    const logWeightsOf = new Map<number, number[]>();
    const addShare = (id: number, logWeight: number): void => {
      const logWeights = logWeightsOf.get(id);
      if (logWeights === undefined) logWeightsOf.set(id, [logWeight]);
      else logWeights.push(logWeight);
    };
    let noise: NextToken | undefined;
    for (const { index, logWeight } of this.live) {
      const symbol = this.symbol(index, position);
      if (symbol !== NOISE) {
        addShare(symbol, logWeight);
        continue;
      }
      noise ??= this.noise(position, weights);
      for (const [at, id] of noise.ids.entries()) addShare(id, logWeight + (noise.logps[at] as number));
    }
    const ids = [...logWeightsOf.keys()];
    if (ids.length === 1) return { ids, logps: CERTAIN };
    const total = logSumExp(this.live.map(({ logWeight }) => logWeight));
    const logps = ids.map((id) => logSumExp(logWeightsOf.get(id) ?? []) - total);
    return this.allowed === null ? { ids, logps } : { ids, logps, permitted: this.permitted(ids, noise) };
  }

  /**
   * Returns for each of `ids` whether at least one turn that the constraint allows has this id next. `noise` is the distribution of a
   * randomly drawn thinking token at this position.
   */
  private permitted(ids: readonly number[], noise: NextToken | undefined): readonly boolean[] {
    const position = this.turn.length;
    const reachable = new Set<number>();
    for (const { index } of this.live) {
      if (this.allowed?.[index] !== true) continue;
      const symbol = this.symbol(index, position);
      if (symbol !== NOISE) reachable.add(symbol);
      else for (const id of noise?.ids ?? []) reachable.add(id);
    }
    return ids.map((id) => reachable.has(id));
  }
}

/** Weights for computing the candidate ids of a noise token (a randomly drawn thinking token). These ids are the same for all weights. */
const NO_WEIGHTS: Weights = { version: '', logits: {}, noiseSalt: 0 };
