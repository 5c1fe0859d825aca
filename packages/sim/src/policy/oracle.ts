import { FloeError } from '@floe-rl/core';
import type { VersionSpan } from '@floe-rl/core/schema';
import type { SamplerParams } from '../sampler.ts';
import type { TemplateMode } from '../template.ts';
import type { Vocabulary } from '../vocabulary.ts';
import { allowedTurns, type Constraint, constrainedFrom } from './constraint.ts';
import { parseConversation } from './conversation.ts';
import { Policy } from './policy.ts';
import type { Scenario } from './scenario.ts';
import {
  compileReply,
  NOISE,
  noiseDistribution,
  noiseWords,
  type ScriptedReply,
  type ScriptedTurn,
} from './scripted-reply.ts';
import type { WeightStore, Weights } from './weights.ts';

/** Log-probabilities of each response id: `raw` before, and `processed` after penalties, temperature and cut-offs are applied. */
export type OracleLogprobs = { readonly raw: number[]; readonly processed: number[] };

/**
 * Recomputes the logprobs that a reply must have from its prompt ids, response ids, policy versions and sampling parameters alone.
 * `version` is one version, or the version spans of a reply that several versions sampled. A token that the policy cannot have sampled gets
 * -Infinity. Set `malformedCalls` for replies with the fault `malformed_tool_call`. Throws `not_found` for a version that was never in
 * effect, and `bad_request` for spans that do not cover the response.
 */
export type Oracle = (
  promptIds: ArrayLike<number>,
  responseIds: ArrayLike<number>,
  version: string | readonly VersionSpan[],
  params: SamplerParams & { readonly constraint?: Constraint | null },
  options?: { readonly malformedCalls?: boolean },
) => OracleLogprobs;

type OracleParts = {
  readonly vocabulary: Vocabulary;
  readonly scenarios: readonly Scenario[];
  readonly mode: TemplateMode;
  readonly weights: WeightStore;
};

/**
 * Creates an oracle. It uses the engine's code to select a scenario rule and to encode the turns that this rule can write, but none of
 * the engine's arithmetic. It computes plain probabilities of every scripted turn at every position from the start, without the engine's
 * incremental state, log space or shortcuts.
 */
export function newOracle(parts: OracleParts): Oracle {
  const { vocabulary, mode, weights } = parts;
  const policy = new Policy(vocabulary, parts.scenarios, mode);
  const words = noiseWords(vocabulary);
  return (promptIds, responseIds, version, params, options = {}) => {
    const conversation = parseConversation(vocabulary, promptIds);
    const { scenario, rule } = policy.select(conversation);
    const reply = compileReply(vocabulary, scenario, rule, mode, options.malformedCalls ?? false);
    const { constraint = null } = params;
    const allowed =
      constraint === null
        ? null
        : allowedTurns(
            vocabulary,
            compileReply(vocabulary, scenario, rule, mode),
            constraint,
            constrainedFrom(vocabulary, conversation.openTurn),
          );
    const turn = [...conversation.openTurn, ...Array.from(responseIds)];
    const first = conversation.openTurn.length;
    const versionAt = versionLookup(version, responseIds.length);
    const joints = new Map<string, Joint>();
    const raw: number[] = [];
    const processed: number[] = [];
    for (let position = first; position < turn.length; position++) {
      const name = versionAt(position - first);
      let joint = joints.get(name);
      if (joint === undefined) {
        joint = new Joint(reply, weights.get(name), words, vocabulary);
        joints.set(name, joint);
      }
      const distribution = joint.next(turn, position);
      const id = turn[position] as number;
      raw.push(Math.log(distribution.get(id) ?? 0));
      const permitted = allowed === null ? distribution : joint.permitted(distribution, allowed, turn, position);
      const drawn = reshape(permitted, params, Array.from(promptIds), turn.slice(first, position));
      processed.push(Math.log(drawn.get(id) ?? 0));
    }
    return { raw, processed };
  };
}

function versionLookup(version: string | readonly VersionSpan[], length: number): (position: number) => string {
  if (typeof version === 'string') return () => version;
  return (position) => {
    const span = version.find(({ start, end }) => position >= start && position < end);
    if (span?.version === undefined || span.version === null) {
      throw new FloeError('bad_request', `version spans do not cover position ${position} of ${length}`);
    }
    return span.version;
  };
}

/**
 * Computes the probabilities of the next token of a turn under one policy version. For each scripted turn, the class keeps the probability,
 * up to a common factor, that the policy chooses this turn and begins it with the tokens so far.
 */
class Joint {
  private readonly reply: ScriptedReply;
  private readonly weights: Weights;
  private readonly words: readonly number[];
  private readonly vocabulary: Vocabulary;
  private readonly probabilities: number[];
  private done = 0;

  constructor(reply: ScriptedReply, weights: Weights, words: readonly number[], vocabulary: Vocabulary) {
    this.reply = reply;
    this.weights = weights;
    this.words = words;
    this.vocabulary = vocabulary;
    this.probabilities = reply.turns.map((scripted) => prior(scripted, reply.scenario, weights));
  }

  /** Returns the probabilities of the token at `position`, given the tokens `turn[0..position)`. */
  next(turn: readonly number[], position: number): Map<number, number> {
    for (; this.done < position; this.done++) {
      for (const [index, scripted] of this.reply.turns.entries()) {
        const likelihood = this.emission(scripted, turn, this.done).get(turn[this.done] as number) ?? 0;
        this.probabilities[index] = (this.probabilities[index] as number) * likelihood;
      }
      // Scaling prevents underflow of long products. Only the ratios of the probabilities matter.
      const scale = this.probabilities.reduce((sum, probability) => sum + probability, 0);
      if (scale > 0)
        for (const index of this.probabilities.keys())
          this.probabilities[index] = (this.probabilities[index] as number) / scale;
    }
    const total = this.probabilities.reduce((sum, probability) => sum + probability, 0);
    const next = new Map<number, number>();
    if (total === 0) {
      const { imEnd, endOfText } = this.vocabulary.special;
      const last = turn[position - 1];
      return next.set(last === imEnd || last === endOfText ? endOfText : imEnd, 1);
    }
    for (const [index, scripted] of this.reply.turns.entries()) {
      const share = (this.probabilities[index] as number) / total;
      if (share === 0) continue;
      for (const [id, probability] of this.emission(scripted, turn, position)) {
        next.set(id, (next.get(id) ?? 0) + share * probability);
      }
    }
    return next;
  }

  /**
   * Returns `distribution` without the tokens that no allowed scripted turn has at this position.
   */
  permitted(
    distribution: ReadonlyMap<number, number>,
    allowed: readonly boolean[],
    turn: readonly number[],
    position: number,
  ): Map<number, number> {
    const isPermitted = (id: number): boolean =>
      this.reply.turns.some(
        (scripted, index) =>
          allowed[index] === true &&
          (this.probabilities[index] as number) > 0 &&
          this.emission(scripted, turn, position).has(id),
      );
    return new Map([...distribution].filter(([id]) => isPermitted(id)));
  }

  private emission(scripted: ScriptedTurn, turn: readonly number[], position: number): Map<number, number> {
    const symbol = scripted.symbols[position] ?? this.vocabulary.special.endOfText;
    if (symbol !== NOISE) return new Map([[symbol, 1]]);
    const noise = noiseDistribution(this.words, this.reply, position, turn[position - 1] ?? -1, this.weights);
    return new Map(noise.ids.map((id, index) => [id, Math.exp(noise.logps[index] as number)]));
  }
}

function prior(scripted: ScriptedTurn, scenario: string, weights: Weights): number {
  return scripted.picks.reduce((product, { choice, option }) => {
    const exponentials = (weights.logits[scenario]?.[choice] ?? []).map(Math.exp);
    return (product * (exponentials[option] ?? 0)) / exponentials.reduce((sum, value) => sum + value, 0);
  }, 1);
}

/** Returns the distribution after penalties, temperature, min_p, top_k and top_p, applied in vLLM's order. */
function reshape(
  distribution: ReadonlyMap<number, number>,
  params: SamplerParams,
  prompt: readonly number[],
  output: readonly number[],
): Map<number, number> {
  let entries = [...distribution].map(([id, probability]) => {
    const count = output.filter((other) => other === id).length;
    let logit = Math.log(probability);
    // A repetition penalty divides positive logits and multiplies negative ones. Log-probabilities are never positive, so this always
    // multiplies.
    if (count > 0 || prompt.includes(id)) logit *= params.repetitionPenalty;
    logit -= count * params.frequencyPenalty + (count > 0 ? params.presencePenalty : 0);
    return { id, weight: Math.exp(logit) };
  });
  if (entries.length === 1) return new Map(entries.map(({ id }) => [id, 1]));
  const greedy = params.temperature < 1e-5;
  if (!greedy) {
    entries = entries.map(({ id, weight }) => ({ id, weight: weight ** (1 / params.temperature) }));
    entries.sort((a, b) => b.weight - a.weight);
    const best = entries[0]?.weight ?? 0;
    entries = entries.filter(({ weight }) => weight >= params.minP * best * (1 - 1e-12));
    const bound = params.topK > 0 ? (entries[params.topK - 1]?.weight ?? 0) : 0;
    entries = entries.filter(({ weight }) => weight >= bound);
    const total = entries.reduce((sum, { weight }) => sum + weight, 0);
    let before = 0;
    entries = entries.filter(({ weight }) => {
      const kept = before < params.topP * total;
      before += weight;
      return kept;
    });
  }
  const total = entries.reduce((sum, { weight }) => sum + weight, 0);
  return new Map(entries.map(({ id, weight }) => [id, weight / total]));
}
