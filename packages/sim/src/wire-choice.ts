import type { LogprobsMode } from './context.ts';
import type { FaultPlan } from './faults.ts';
import { NAN_PLACEHOLDER } from './http.ts';
import type { Ledger, LedgerEntry } from './ledger.ts';
import type { Alternative, SampledToken } from './run.ts';
import type { Vocabulary } from './vocabulary.ts';

/** A logprob as it is sent to the client. It is a string or `null` only when an injected fault changed it. */
export type WireLogprob = number | string | null;

/** One position in the logprobs of a choice, as it is sent to the client. */
export type WireToken = {
  readonly id: number;
  readonly logprob: WireLogprob;
  /** The alternatives at this position, most likely first; at most as many as the request demands. */
  readonly top: readonly Alternative[];
};

/** The logprob that engines send for an impossible token, because JSON cannot represent -Infinity. */
const LOGPROB_FLOOR = -9999;

/** Number of tokens that the fault `usage_mismatch` adds to the reported completion tokens. */
const USAGE_EXCESS = 3;

/** The logprob that the fault `logprob_positive` sends. It is invalid, because the logarithm of a probability is at most 0. */
const POSITIVE_LOGPROB = 0.5;

/** Returns a token's logprob as the server's logprobs mode reports it. */
export function wireLogprob(token: { readonly raw: number; readonly processed: number }, mode: LogprobsMode): number {
  return Math.max(LOGPROB_FLOOR, mode === 'raw_logprobs' ? token.raw : token.processed);
}

/**
 * Converts one choice's sampled tokens to the ids and logprobs that are sent, and applies the injected faults of the call to them. Streamed
 * and complete replies to the same call have the same ids and logprobs.
 */
export class WireChoice {
  private readonly plan: FaultPlan;
  private readonly mode: LogprobsMode;
  private readonly vocabulary: Vocabulary;
  /** The ledger entry whose ids and logprobs the fault `foreign_ids` sends; `undefined` when the ledger has no suitable entry. */
  private readonly other: LedgerEntry | undefined;
  private sent = 0;
  private hasLostIds = false;
  /** The latest token, which the fault `off_by_one_logprobs` sends one position too late. */
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

  /** Returns the prompt ids to be sent; `undefined` when an injected fault leaves them out. */
  promptIds(ids: readonly number[]): readonly number[] | undefined {
    if (this.plan.has('missing_ids')) return undefined;
    if (this.plan.has('echo_other_prompt')) return this.withOneIdChanged(ids);
    if (!this.plan.has('foreign_ids')) return ids;
    return this.other?.prompt_ids ?? shiftedIds(this.vocabulary, ids);
  }

  /**
   * Returns the ids and logprobs to be sent for the next tokens. Only an injected fault makes the two lists differ in length or leaves the
   * ids out.
   */
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
   * Whether the fault `stream_lost_ids` removes the ids and logprobs of this streamed chunk. It removes them from every chunk whose text
   * the parser does not show. When the reply has no such chunk, it removes them from the last chunk.
   */
  losesIds(isTextHidden: boolean, isLast: boolean): boolean {
    if (!this.plan.has('stream_lost_ids') || !(isTextHidden || (isLast && !this.hasLostIds))) return false;
    this.hasLostIds = true;
    return true;
  }

  /** Returns the number of completion tokens that the usage reports. */
  completionTokens(sampled: number): number {
    return this.plan.has('usage_mismatch') ? sampled + USAGE_EXCESS : sampled;
  }

  /** Moves each token's logprob entry to the next position. The first position gets an id that was not sampled. */
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

  /** Returns the token at `position` of another call's reply. When the ledger has no other call, returns the next id of the vocabulary. */
  private foreign(token: WireToken, position: number): WireToken {
    const { other } = this;
    if (other === undefined) return { ...token, id: (token.id + 1) % this.vocabulary.size };
    const index = position % other.response_ids.length;
    const logprobs = this.mode === 'raw_logprobs' ? other.raw_logprobs : other.processed_logprobs;
    return { id: other.response_ids[index] as number, logprob: logprobs[index] as number, top: token.top };
  }
}

/** Simulates a tokenizer that does not match the model: replaces each id by the next id of the vocabulary. */
export function shiftedIds(vocabulary: Vocabulary, ids: readonly number[]): number[] {
  return ids.map((id) => (id + 1) % vocabulary.size);
}

/** Returns the entries of `logprobs.content` in a chat reply. With `asId`, tokens are named `token_id:<id>` instead of by their text. */
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

/** Returns the token's name in a logprob entry: its text, or `token_id:<id>` with `asId`. */
export function tokenName(vocabulary: Vocabulary, id: number, asId: boolean): string {
  return asId ? `token_id:${id}` : vocabulary.decode([id]);
}
