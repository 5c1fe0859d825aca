import type { FinishReason, VersionSpan } from '@floe-rl/core/schema';
import type { LedgerEntry, PromptForm } from './ledger.ts';
import type { NextToken, Policy, ReplyWalk } from './policy/policy.ts';
import type { Weights } from './policy/weights.ts';
import { uniform } from './random.ts';
import { draw, hasPenalties, processLogprobs, type SamplingParams } from './sampler.ts';
import { VisibleText } from './visible-text.ts';
import type { Vocabulary } from './vocabulary.ts';

/** One reply that the engine is to sample. A request with several choices (`n` > 1) becomes several of these objects. */
export type GenerateCall = {
  /** Request id without a prefix such as `chatcmpl-`; a client uses it to abort the call. */
  readonly requestId: string;
  /** Index of this reply among the choices of the call. */
  readonly choice: number;
  /** Path of the route that the client called. */
  readonly endpoint: string;
  readonly promptForm: PromptForm;
  readonly sessionId: string | null;
  readonly promptIds: readonly number[];
  readonly params: SamplingParams;
  /** Maximum number of alternative tokens that are reported per position (vLLM's top logprobs). */
  readonly topCount: number;
  /** Salt of the prefix cache. Prompts share cached blocks only when they have the same salt. */
  readonly cacheSalt: string;
  /** Maximum number of tokens per event; `null` when an event holds all tokens that are ready. */
  readonly eventTokens: number | null;
  readonly signal: AbortSignal;
  readonly faults: CallFaults;
};

/** The injected faults of one call that the engine applies during sampling. */
export type CallFaults = {
  /** Kinds of all injected faults that hit the call. They are recorded in the ledger. */
  readonly names: readonly string[];
  readonly malformedCalls: boolean;
  /** Reply length in tokens at which the engine aborts the call; `null` when it does not. */
  readonly abortAt: number | null;
  /** Reply length in tokens at which sampling stalls until the call is aborted; `null` when it does not stall. */
  readonly stallAt: number | null;
  /**
   * Reply length in tokens at which the weights change although the server continues to report the old version; `null` when they do not.
   */
  readonly swapAt: number | null;
  /** All delays of the call are multiplied by this factor; 1 leaves them unchanged. */
  readonly slowFactor: number;
};

export const NO_FAULTS: CallFaults = {
  names: [],
  malformedCalls: false,
  abortAt: null,
  stallAt: null,
  swapAt: null,
  slowFactor: 1,
};

/** A token that could have been sampled at a position, with its log-probability before and after penalties, temperature and cut-offs. */
export type Alternative = { readonly id: number; readonly raw: number; readonly processed: number };

export type SampledToken = Alternative & {
  readonly version: string;
  /** The candidates with the highest raw probability, most likely first; at most `topCount`. */
  readonly top: readonly Alternative[];
};

/** How a reply ended. `stop` is the stop string or stop token id that ended it; `null` when it ended for another reason. */
export type Finish = { readonly reason: Exclude<FinishReason, 'tool_calls'>; readonly stop: string | number | null };

const NO_TOP: readonly Alternative[] = [];

/** Samples one reply token by token. It is independent of time, slots and wire formats. */
export class Run {
  readonly call: GenerateCall;
  readonly text: VisibleText;
  readonly tokens: SampledToken[] = [];
  readonly controller = new AbortController();
  /** Whether this reply is sampled to its end although the engine is paused. A pause with mode `wait` sets this for all running replies. */
  exempt = false;
  /** How the reply ended; `null` while it continues. */
  finish: Finish | null = null;
  private readonly vocabulary: Vocabulary;
  private readonly walk: ReplyWalk;
  private readonly randomKey: readonly number[];
  private readonly promptSet: ReadonlySet<number>;
  private readonly counts = new Map<number, number>();
  private readonly startedMs: number;

  /** `randomKey` determines the random draws when the call has no seed. */
  constructor(
    call: GenerateCall,
    parts: {
      readonly vocabulary: Vocabulary;
      readonly policy: Policy;
      readonly randomKey: readonly number[];
      readonly nowMs: number;
    },
  ) {
    this.call = call;
    this.vocabulary = parts.vocabulary;
    this.startedMs = parts.nowMs;
    this.walk = parts.policy.beginReply(call.promptIds, call.faults.malformedCalls, call.params.constraint);
    this.text = new VisibleText(parts.vocabulary, call.params);
    this.randomKey = call.params.seed === null ? parts.randomKey : seedKey(call.params.seed, call.choice);
    this.promptSet = hasPenalties(call.params) ? new Set(call.promptIds) : new Set();
  }

  /** Samples one token with `weights`. Sets `finish` when the token ends the reply. */
  step(weights: Weights): SampledToken {
    const { params } = this.call;
    const next = this.walk.next(weights);
    const logps = processLogprobs(next, params, { prompt: this.promptSet, counts: this.counts });
    const picked = logps.length === 1 ? 0 : draw(logps, params, uniform(...this.randomKey, this.tokens.length));
    const id = next.ids[picked] as number;
    const token = {
      id,
      raw: next.logps[picked] as number,
      processed: logps[picked] as number,
      version: weights.version,
      top: this.call.topCount > 0 ? alternatives(next, logps, this.call.topCount) : NO_TOP,
    };
    this.walk.advance(id);
    this.tokens.push(token);
    if (hasPenalties(params)) this.counts.set(id, (this.counts.get(id) ?? 0) + 1);
    this.finish = this.finishAfter(id);
    return token;
  }

  /**
   * Returns the run's ledger entry; `nowMs` is the time at which sampling ended, and `contextSpans` are the policy versions that computed
   * the prompt.
   */
  entry(nowMs: number, contextSpans: readonly VersionSpan[]): Omit<LedgerEntry, 'sequence'> {
    const finish = this.finish ?? { reason: 'abort', stop: null };
    return {
      request_id: this.call.requestId,
      choice: this.call.choice,
      endpoint: this.call.endpoint,
      prompt_form: this.call.promptForm,
      session_id: this.call.sessionId,
      scenario: this.walk.reply.scenario,
      rule: this.walk.reply.rule,
      prompt_ids: this.call.promptIds,
      response_ids: this.tokens.map(({ id }) => id),
      raw_logprobs: this.tokens.map(({ raw }) => raw),
      processed_logprobs: this.tokens.map((token) => token.processed),
      version_spans: versionSpans(this.tokens),
      context_spans: contextSpans,
      params: this.call.params,
      finish_reason: finish.reason,
      stop_reason: finish.stop,
      aborted_at: finish.reason === 'abort' ? this.tokens.length : null,
      faults: this.call.faults.names,
      started_ms: this.startedMs,
      ended_ms: nowMs,
    };
  }

  /**
   * Returns how the reply ends when it ends with token `id`: at the end of the turn, a stop token, a stop string, the maximum length or an
   * injected abort. Returns `null` when the reply continues. The text of a token that ends the turn is hidden.
   */
  private finishAfter(id: number): Finish | null {
    const { params, faults } = this.call;
    const { imEnd, endOfText } = this.vocabulary.special;
    if (!params.ignoreEos && (id === imEnd || id === endOfText)) return { reason: 'stop', stop: null };
    if (params.stopTokenIds.includes(id)) {
      if (params.includeStop) this.text.push(id);
      return { reason: 'stop', stop: id };
    }
    this.text.push(id);
    if (this.text.stop !== null) return { reason: 'stop', stop: this.text.stop };
    if (this.tokens.length >= params.maxTokens) return { reason: 'length', stop: null };
    return faults.abortAt !== null && this.tokens.length >= faults.abortAt ? { reason: 'abort', stop: null } : null;
  }
}

/**
 * Returns the random key of a seeded choice: the two 32-bit halves of the seed, and the choice's index, so that the choices of one request
 * differ.
 */
function seedKey(seed: number, choice: number): readonly number[] {
  return [seed | 0, Math.floor(seed / 2 ** 32) | 0, choice];
}

function alternatives(next: NextToken, logps: readonly number[], count: number): readonly Alternative[] {
  return next.ids
    .map((id, index) => ({ id, raw: next.logps[index] as number, processed: logps[index] as number }))
    .filter((_, index) => next.permitted?.[index] ?? true)
    .sort((a, b) => b.raw - a.raw)
    .slice(0, count);
}

/** Returns the policy versions of the reply's tokens as consecutive spans without gaps. */
function versionSpans(tokens: readonly { readonly version: string }[]): VersionSpan[] {
  const spans: VersionSpan[] = [];
  for (const [index, { version }] of tokens.entries()) {
    const last = spans.at(-1);
    if (last?.version === version) last.end = index + 1;
    else spans.push({ version, start: index, end: index + 1 });
  }
  return spans;
}
