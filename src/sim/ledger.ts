import { closeSync, mkdirSync, openSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import type { FinishReason, VersionSpan } from '../schema/index.ts';
import type { SamplingParams } from './sampler.ts';

/**
 * How the caller gave the prompt: as the token ids that were sampled from (`ids`), as text to be encoded (`text`), or as messages to
 * be rendered and encoded (`messages`).
 */
export type PromptForm = 'ids' | 'text' | 'messages';

/** What the simulated engine really sampled for one choice of one call. Written once, when sampling ended. */
export type LedgerEntry = {
  /** Position in the order in which sampling ended, from 0, over the server's lifetime. */
  readonly sequence: number;
  /** The id that the caller gave (`X-Request-Id` or `request_id`), else one that the server made; without any prefix. */
  readonly request_id: string;
  /** Index among the choices of the call. */
  readonly choice: number;
  /** Path of the route that was called. */
  readonly endpoint: string;
  readonly prompt_form: PromptForm;
  /** The caller's `X-Session-ID`; `null` when it sent none. */
  readonly session_id: string | null;
  /** Name of the scenario that wrote the reply. */
  readonly scenario: string;
  /** Index of the scenario's rule that wrote the reply. */
  readonly rule: number;
  readonly prompt_ids: readonly number[];
  readonly response_ids: readonly number[];
  /** Log-probability of each response id in the policy itself. */
  readonly raw_logprobs: readonly number[];
  /** Log-probability of each response id in the distribution that it was drawn from, after penalties, temperature and cut-offs. */
  readonly processed_logprobs: readonly number[];
  /** Policy versions that sampled the response, by token positions; they cover it without gaps. */
  readonly version_spans: readonly VersionSpan[];
  readonly params: SamplingParams;
  readonly finish_reason: FinishReason;
  /** The stop string or stop token id that ended the reply; `null` when none did. */
  readonly stop_reason: string | number | null;
  /** Response length in tokens at which the call was aborted; `null` when it was not aborted. */
  readonly aborted_at: number | null;
  /** Faults injected into this call. They may have made the reply malformed, or different from this entry. */
  readonly faults: readonly string[];
  /** Unix time in milliseconds. */
  readonly started_ms: number;
  readonly ended_ms: number;
};

/** Selects entries; an entry must match every field that is given. */
export type LedgerFilter = { readonly sessionId?: string; readonly requestId?: string };

/**
 * Append-only record of everything that the simulated engine sampled: the truth to compare captured completions and training
 * samples with. Memory holds the latest `limit` entries; the file, when there is one, holds all of them, one JSON object per line,
 * each written before the call's last event is sent.
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

  /** Number of entries appended since the start, including those that memory no longer holds. */
  get total(): number {
    return this.appended;
  }

  append(entry: Omit<LedgerEntry, 'sequence'>): LedgerEntry {
    const complete = { sequence: this.appended++, ...entry };
    if (this.file !== null && !this.closed) writeSync(this.file, `${JSON.stringify(complete)}\n`);
    this.latest.push(complete);
    // Truncating only at twice the limit keeps the amortised cost per entry constant.
    if (this.latest.length >= 2 * this.limit) this.latest = this.latest.slice(-this.limit);
    return complete;
  }

  /** The entries in memory (at most the latest `limit`) that match `filter`, in the order in which sampling ended. */
  entries(filter: LedgerFilter = {}): LedgerEntry[] {
    return this.latest
      .slice(-this.limit)
      .filter(
        (entry) =>
          (filter.sessionId === undefined || entry.session_id === filter.sessionId) &&
          (filter.requestId === undefined || entry.request_id === filter.requestId),
      );
  }

  /** Closes the file. Later entries are kept in memory only. */
  close(): void {
    if (this.closed) return;
    this.closed = true;
    if (this.file !== null) closeSync(this.file);
  }
}
