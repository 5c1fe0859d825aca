import type { LogprobsMode } from './context.ts';
import type { FaultPlan } from './faults.ts';
import { NAN_PLACEHOLDER } from './http.ts';
import type { Ledger, LedgerEntry } from './ledger.ts';
import type { Alternative, SampledToken } from './run.ts';
import type { Vocabulary } from './vocabulary.ts';

/** A logprob as sent. It is not a number only when a fault changed it. */
export type WireLogprob = number | string | null;

/** One position of a choice's logprobs as sent. */
export type WireToken = {
  readonly id: number;
  readonly logprob: WireLogprob;
  /** Alternatives at this position, most likely first; at most as many as the request asked for. */
  readonly top: readonly Alternative[];
};

/** The value that engines send for impossible tokens, because JSON has no -Infinity. */
const LOGPROB_FLOOR = -9999;

/** Number of tokens that `usage_mismatch` adds to the completion tokens. */
const USAGE_EXCESS = 3;

/** The logprob sent by `logprob_positive`; no probability has it. */
const POSITIVE_LOGPROB = 0.5;

/** A token's logprob as the server's logprobs mode reports it. */
export function wireLogprob(token: { readonly raw: number; readonly processed: number }, mode: LogprobsMode): number {
  return Math.max(LOGPROB_FLOOR, mode === 'raw_logprobs' ? token.raw : token.processed);
}

/**
 * Converts one choice's sampled tokens to the ids and logprobs that are sent, and applies the call's faults to them. The same call
 * sends the same ids and logprobs whether it is streamed or not.
 */
export class WireChoice {
  private readonly plan: FaultPlan;
  private readonly mode: LogprobsMode;
  private readonly vocabulary: Vocabulary;
  /** The entry whose ids and logprobs `foreign_ids` sends; `undefined` when there is none. */
  private readonly other: LedgerEntry | undefined;
  private sent = 0;
  private hasLostIds = false;
  /** The latest token, for the fault that sends each logprob one position too late. */
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

  /** The prompt ids to be sent; `undefined` when a fault leaves ids out. */
  promptIds(ids: readonly number[]): readonly number[] | undefined {
    if (this.plan.has('missing_ids')) return undefined;
    if (this.plan.has('echo_other_prompt')) return this.withOneIdChanged(ids);
    if (!this.plan.has('foreign_ids')) return ids;
    return this.other?.prompt_ids ?? shiftedIds(this.vocabulary, ids);
  }

  /** Ids and logprobs to be sent for the next tokens. Only a fault makes the two lists differ in length, or leaves the ids out. */
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
    if (this.plan.has('off_by_one_logprobs')) wire = this.shiftedByOne(wire);
    const first = wire[0];
    if (start === 0 && first !== undefined) {
      if (this.plan.has('logprob_nan')) wire[0] = { ...first, logprob: NAN_PLACEHOLDER };
      if (this.plan.has('logprob_null')) wire[0] = { ...first, logprob: null };
      if (this.plan.has('logprob_positive')) wire[0] = { ...first, logprob: POSITIVE_LOGPROB };
      if (this.plan.has('logprobs_length')) wire.pop();
    }
    return { ids: this.plan.has('missing_ids') ? undefined : ids, logprobs: wire };
  }

  /**
   * Whether `stream_lost_ids` removes the ids and logprobs of a streamed chunk: of every chunk whose text the parser does not show,
   * and of the last chunk when there was no such chunk.
   */
  losesIds(isTextHidden: boolean, isLast: boolean): boolean {
    if (!this.plan.has('stream_lost_ids') || !(isTextHidden || (isLast && !this.hasLostIds))) return false;
    this.hasLostIds = true;
    return true;
  }

  /** The number of completion tokens that the usage reports. */
  completionTokens(sampled: number): number {
    return this.plan.has('usage_mismatch') ? sampled + USAGE_EXCESS : sampled;
  }

  /** Moves each token's entry to the next position; the first position shows an id that was not sampled. */
  private shiftedByOne(wire: readonly WireToken[]): WireToken[] {
    return wire.map((token) => {
      const shown = this.previous ?? { id: (token.id + 1) % this.vocabulary.size, logprob: 0, top: [] };
      this.previous = token;
      return shown;
    });
  }

  private withOneIdChanged(ids: readonly number[]): readonly number[] {
    const changedIndex = Math.floor(ids.length / 2);
    return ids.map((id, index) => (index === changedIndex ? (id + 1) % this.vocabulary.size : id));
  }

  /** The token at `position` of the other call's reply; without another call, the next id of the vocabulary. */
  private foreign(token: WireToken, position: number): WireToken {
    const { other } = this;
    if (other === undefined) return { ...token, id: (token.id + 1) % this.vocabulary.size };
    const index = position % other.response_ids.length;
    const logprobs = this.mode === 'raw_logprobs' ? other.raw_logprobs : other.processed_logprobs;
    return { id: other.response_ids[index] as number, logprob: logprobs[index] as number, top: token.top };
  }
}

/** The ids of a tokenizer that does not match the model: each id is replaced by the next one of the vocabulary. */
export function shiftedIds(vocabulary: Vocabulary, ids: readonly number[]): number[] {
  return ids.map((id) => (id + 1) % vocabulary.size);
}

/** The entries of `logprobs.content` in a chat reply. With `asId`, tokens are named `token_id:<id>` instead of by their text. */
export function chatLogprobs(
  wire: readonly WireToken[],
  options: { readonly vocabulary: Vocabulary; readonly mode: LogprobsMode; readonly asId: boolean },
): object[] {
  const { vocabulary, mode, asId } = options;
  const entry = (id: number, logprob: WireLogprob): object => ({
    token: tokenName(vocabulary, id, asId),
    logprob,
    bytes: [...vocabulary.bytes(id)],
  });
  return wire.map(({ id, logprob, top }) => ({
    ...entry(id, logprob),
    top_logprobs: top.map((other) => entry(other.id, wireLogprob(other, mode))),
  }));
}

/** The token's name in a logprob entry: its text, or `token_id:<id>` with `asId`. */
export function tokenName(vocabulary: Vocabulary, id: number, asId: boolean): string {
  return asId ? `token_id:${id}` : vocabulary.decode([id]);
}
