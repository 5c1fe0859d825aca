import { closeSync, mkdirSync, openSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import type { FinishReason, VersionSpan } from '@floe-rl/core/schema';
import type { SamplingParams } from './sampler.ts';

/**
 * How the caller gave the prompt: `ids` is a list of token ids that is used unchanged, `text` is a text to be encoded, and `messages` are
 * chat messages to be rendered and encoded.
 */
export type PromptForm = 'ids' | 'text' | 'messages';

/**
 * The tokens that the simulated engine sampled for one choice of one call, with their context. The entry is written once, when sampling has
 * ended.
 */
export type LedgerEntry = {
  /** Position of this entry in the order in which sampling ended, counted from 0 over the server's lifetime. */
  readonly sequence: number;
  /**
   * The request id that the caller gave (`X-Request-Id` or `request_id`). Without it, the server makes an id. The id has no prefix such as
   * `chatcmpl-`.
   */
  readonly request_id: string;
  /** Index of this reply among the choices of the call. */
  readonly choice: number;
  /** Path of the route that the client called. */
  readonly endpoint: string;
  readonly prompt_form: PromptForm;
  /** Value of the caller's `X-Session-ID` header; `null` when the caller sent none. */
  readonly session_id: string | null;
  /** Name of the scenario (a script for the simulated policy) that produced this reply. */
  readonly scenario: string;
  /** Index, within its scenario, of the scenario rule that produced this reply. */
  readonly rule: number;
  readonly prompt_ids: readonly number[];
  readonly response_ids: readonly number[];
  /** Log-probability of each response id in the policy's own distribution, that is, before penalties, temperature and cut-offs. */
  readonly raw_logprobs: readonly number[];
  /** Log-probability of each response id in the distribution that it was drawn from, that is, after penalties, temperature and cut-offs. */
  readonly processed_logprobs: readonly number[];
  /** Policy versions that sampled the response, as spans of token positions that cover the response without gaps. */
  readonly version_spans: readonly VersionSpan[];
  /**
   * Policy versions that computed the prompt's entries in the KV cache, as spans of token positions that cover the prompt without gaps. They
   * differ from the version of the first token when the prompt's beginning was cached by other weights, or when the weights changed before
   * the first token. Empty for a call that was aborted before it left the queue.
   */
  readonly context_spans: readonly VersionSpan[];
  readonly params: SamplingParams;
  readonly finish_reason: FinishReason;
  /** The stop string or stop token id that ended the reply; `null` when the reply ended for another reason. */
  readonly stop_reason: string | number | null;
  /** Response length in tokens at which the call was aborted; `null` when it was not aborted. */
  readonly aborted_at: number | null;
  /** Kinds of the faults injected into this call. A fault may have made the reply malformed or different from this entry. */
  readonly faults: readonly string[];
  /** Unix time in milliseconds at which the call started. */
  readonly started_ms: number;
  readonly ended_ms: number;
};

/** Selects ledger entries. An entry must match every field that is given. */
export type LedgerFilter = { readonly sessionId?: string; readonly requestId?: string };

/**
 * Append-only record of every token that the simulated engine sampled. Tests and checks compare captured completions and training samples with
 * it. Memory holds the latest `limit` entries. An optional file holds all entries, one JSON object per line; each line is written before the
 * call's last event is sent.
 */
export class Ledger {
  private readonly limit: number;
  private readonly file: number | null;
  private latest: LedgerEntry[] = [];
  private appended = 0;
  private closed = false;

  constructor(options: { readonly limit: number; readonly path?: string | undefined }) {
    this.limit = options.limit;
    if (options.path !== undefined) mkdirSync(dirname(options.path), { recursive: true });
    this.file = options.path === undefined ? null : openSync(options.path, 'a');
  }

  /** Number of entries appended since the start, including entries that memory no longer holds. */
  get total(): number {
    return this.appended;
  }

  append(entry: Omit<LedgerEntry, 'sequence'>): LedgerEntry {
    const complete = { sequence: this.appended++, ...entry };
    if (this.file !== null && !this.closed) writeSync(this.file, `${JSON.stringify(complete)}\n`);
    this.latest.push(complete);
    // Truncates only at twice the limit, which keeps the amortised cost per entry constant.
    if (this.latest.length >= 2 * this.limit) this.latest = this.latest.slice(-this.limit);
    return complete;
  }

  /** Returns the entries in memory (at most the latest `limit`) that match `filter`, in the order in which sampling ended. */
  entries(filter: LedgerFilter = {}): LedgerEntry[] {
    return this.latest
      .slice(-this.limit)
      .filter(
        (entry) =>
          (filter.sessionId === undefined || entry.session_id === filter.sessionId) &&
          (filter.requestId === undefined || entry.request_id === filter.requestId),
      );
  }

  /** Closes the file. Entries that are appended later are kept in memory only. */
  close(): void {
    if (this.closed) return;
    this.closed = true;
    if (this.file !== null) closeSync(this.file);
  }
}
