import type { FinishReason, VersionSpan } from '../schema/index.ts';
import type { LedgerEntry, PromptForm } from './ledger.ts';
import type { NextToken, Policy, ReplyWalk } from './policy/policy.ts';
import type { Weights } from './policy/weights.ts';
import { uniform } from './random.ts';
import { draw, hasPenalties, processLogprobs, type SamplingParams } from './sampler.ts';
import { VisibleText } from './visible-text.ts';
import type { Vocabulary } from './vocabulary.ts';

/** One choice of one call, as the engine samples it. */
export type GenerateCall = {
  /** Without a prefix such as `chatcmpl-`; aborts refer to it. */
  readonly requestId: string;
  /** Index among the choices of the call. */
  readonly choice: number;
  /** Path of the route that was called. */
  readonly endpoint: string;
  readonly promptForm: PromptForm;
  readonly sessionId: string | null;
  readonly promptIds: readonly number[];
  readonly params: SamplingParams;
  /** How many alternatives to report per token. */
  readonly topCount: number;
  /** Prompts share prefix cache blocks only within one salt. */
  readonly cacheSalt: string;
  /** Maximum number of tokens per event; `null` for as many as are ready. */
  readonly eventTokens: number | null;
  readonly signal: AbortSignal;
  readonly faults: CallFaults;
};

/** Injected faults that sampling itself applies. */
export type CallFaults = {
  /** Kinds of all faults that hit the call, for the ledger. */
  readonly names: readonly string[];
  readonly malformedCalls: boolean;
  /** Reply length in tokens at which the engine aborts the call by itself; `null` for never. */
  readonly abortAt: number | null;
  /** Reply length in tokens at which sampling stalls until the call is aborted; `null` for never. */
  readonly stallAt: number | null;
  /** Reply length in tokens at which the weights change without being announced; `null` for never. */
  readonly swapAt: number | null;
  /** Factor by which all delays of the call are multiplied. */
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

/** A candidate for a token, with its log-probability before and after penalties, temperature and cut-offs. */
export type Alternative = { readonly id: number; readonly raw: number; readonly processed: number };

export type SampledToken = Alternative & {
  readonly version: string;
  /** The most likely candidates by raw probability, most likely first; at most as many as requested. */
  readonly top: readonly Alternative[];
};

/** How a reply ended; `stop` is the stop string or stop token id that ended it, `null` when none did. */
export type Finish = { readonly reason: Exclude<FinishReason, 'tool_calls'>; readonly stop: string | number | null };

const NO_TOP: readonly Alternative[] = [];

/** One reply that is being sampled token by token, independent of time, slots and wire formats. */
export class Run {
  readonly call: GenerateCall;
  readonly text: VisibleText;
  readonly tokens: SampledToken[] = [];
  readonly controller = new AbortController();
  /** Whether sampling continues although the engine is paused, because the pause waits for this run to end. */
  exempt = false;
  /** `null` until the reply has ended. */
  finish: Finish | null = null;
  private readonly vocabulary: Vocabulary;
  private readonly walk: ReplyWalk;
  private readonly randomKey: readonly number[];
  private readonly promptSet: ReadonlySet<number>;
  private readonly counts = new Map<number, number>();
  private readonly startedMs: number;

  /** `randomKey` determines the draws when the call has no seed. */
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

  /** Samples one token with `weights`, and sets `finish` when it ends the reply. */
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

  /** The run's ledger entry. */
  entry(nowMs: number): Omit<LedgerEntry, 'sequence'> {
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
   * Applies the engine's rules after sampling `id`: end of turn, stop token, stop string, length. Returns `null` when the reply
   * continues. The text of the token that ended the turn is hidden.
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

/** The 32-bit halves of a seed of any size, and the choice, so that the choices of one request differ. */
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

/** The policy versions of the reply's tokens as consecutive spans without gaps. */
function versionSpans(tokens: readonly { readonly version: string }[]): VersionSpan[] {
  const spans: VersionSpan[] = [];
  for (const [index, { version }] of tokens.entries()) {
    const last = spans.at(-1);
    if (last?.version === version) last.end = index + 1;
    else spans.push({ version, start: index, end: index + 1 });
  }
  return spans;
}
