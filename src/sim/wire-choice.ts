import type { LogprobsMode } from './context.ts';
import type { FaultPlan } from './faults.ts';
import { NAN_MARK } from './http.ts';
import type { Ledger, LedgerEntry } from './ledger.ts';
import type { Alternative, SampledToken } from './run.ts';
import type { Vocabulary } from './vocabulary.ts';

/** A logprob as sent: a number, or what a fault made of it. */
export type WireLogprob = number | string | null;

export type WireToken = {
  readonly id: number;
  readonly logprob: WireLogprob;
  /** Alternatives at this position, best first; as many as were asked for. */
  readonly top: readonly Alternative[];
};

/** Engines' floor for impossible tokens, since JSON has no -Infinity. */
const LOGPROB_FLOOR = -9999;

/** What `usage_mismatch` adds to the tokens really sampled. */
const USAGE_EXCESS = 3;

/** A logprob that no probability has. */
const POSITIVE_LOGPROB = 0.5;

export function wireLogprob(token: { readonly raw: number; readonly processed: number }, mode: LogprobsMode): number {
  return Math.max(LOGPROB_FLOOR, mode === 'raw_logprobs' ? token.raw : token.processed);
}

/**
 * Between one choice's sampled tokens and the wire: passes them on as they are, but for the faults of the call.
 * Streaming and not, the same call sends the same ids and logprobs.
 */
export class WireChoice {
  private readonly plan: FaultPlan;
  private readonly mode: LogprobsMode;
  private readonly vocabulary: Vocabulary;
  private readonly other: LedgerEntry | undefined;
  private sent = 0;
  private lost = false;
  /** The latest token, for the fault that tells each one's logprob a place too late. */
  private previous: WireToken | null = null;

  constructor(parts: {
    readonly plan: FaultPlan;
    readonly mode: LogprobsMode;
    readonly vocabulary: Vocabulary;
    readonly ledger: Ledger;
    readonly requestId: string;
  }) {
    this.plan = parts.plan;
    this.mode = parts.mode;
    this.vocabulary = parts.vocabulary;
    const foreign = parts.plan.has('foreign_ids') ? parts.ledger.entries() : [];
    this.other = foreign.findLast((entry) => entry.request_id !== parts.requestId && entry.response_ids.length > 0);
  }

  /** Undefined: the fault says to leave ids out. */
  promptIds(ids: readonly number[]): readonly number[] | undefined {
    if (this.plan.has('missing_ids')) return undefined;
    if (this.plan.has('echo_other_prompt')) return this.otherEcho(ids);
    if (!this.plan.has('foreign_ids')) return ids;
    return this.other?.prompt_ids ?? shiftedIds(this.vocabulary, ids);
  }

  /** Ids and logprobs of the next tokens; the two lists differ in length only by a fault. */
  take(tokens: readonly SampledToken[]): {
    readonly ids: readonly number[] | undefined;
    readonly logprobs: readonly WireToken[];
  } {
    const start = this.sent;
    this.sent += tokens.length;
    let wire: WireToken[] = tokens.map((token) => ({
      id: token.id,
      logprob: wireLogprob(token, this.mode),
      top: token.top,
    }));
    if (this.plan.has('foreign_ids')) wire = wire.map((token, index) => this.foreign(token, start + index));
    const ids = wire.map(({ id }) => id);
    if (this.plan.has('off_by_one_logprobs')) wire = this.delayed(wire);
    const first = wire[0];
    if (start === 0 && first !== undefined) {
      if (this.plan.has('logprob_nan')) wire[0] = { ...first, logprob: NAN_MARK };
      if (this.plan.has('logprob_null')) wire[0] = { ...first, logprob: null };
      if (this.plan.has('logprob_positive')) wire[0] = { ...first, logprob: POSITIVE_LOGPROB };
      if (this.plan.has('logprobs_length')) wire.pop();
    }
    return { ids: this.plan.has('missing_ids') ? undefined : ids, logprobs: wire };
  }

  /**
   * Whether a streamed chunk goes without its ids and logprobs: one whose text the parser swallowed, and when there was
   * none such, the last.
   */
  losesIds(swallowed: boolean, last: boolean): boolean {
    if (!this.plan.has('stream_lost_ids') || !(swallowed || (last && !this.lost))) return false;
    this.lost = true;
    return true;
  }

  /** Completion tokens as the usage tells them. */
  completionTokens(sampled: number): number {
    return this.plan.has('usage_mismatch') ? sampled + USAGE_EXCESS : sampled;
  }

  /** Each token's entry in the place of the next one; the first place shows an id that was not sampled. */
  private delayed(wire: readonly WireToken[]): WireToken[] {
    return wire.map((token) => {
      const shown = this.previous ?? { id: (token.id + 1) % this.vocabulary.size, logprob: 0, top: [] };
      this.previous = token;
      return shown;
    });
  }

  /** One id of the prompt is another one. */
  private otherEcho(ids: readonly number[]): readonly number[] {
    const place = Math.floor(ids.length / 2);
    return ids.map((id, index) => (index === place ? (id + 1) % this.vocabulary.size : id));
  }

  private foreign(token: WireToken, position: number): WireToken {
    const { other } = this;
    if (other === undefined) return { ...token, id: (token.id + 1) % this.vocabulary.size };
    const at = position % other.response_ids.length;
    const logprobs = this.mode === 'raw_logprobs' ? other.raw_logprobs : other.processed_logprobs;
    return { id: other.response_ids[at] as number, logprob: logprobs[at] as number, top: token.top };
  }
}

/** Ids of a tokenizer that does not match the model: each the one that follows in the vocabulary. */
export function shiftedIds(vocabulary: Vocabulary, ids: readonly number[]): number[] {
  return ids.map((id) => (id + 1) % vocabulary.size);
}
