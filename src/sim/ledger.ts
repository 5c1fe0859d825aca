import { closeSync, mkdirSync, openSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import type { FinishReason, VersionSpan } from '../schema/index.ts';
import type { SamplingParams } from './run.ts';

/** How the caller gave the prompt: token ids, which are then what was sampled from, or something to be rendered or encoded. */
export type PromptForm = 'ids' | 'text' | 'messages';

/** What the simulated engine really did for one choice of one call. Written once, when the sampling ended. */
export type LedgerEntry = {
  /** Order of the end of sampling, from 0, over the server's life. */
  readonly sequence: number;
  /** The id that the caller gave (`X-Request-Id` or `request_id`), else the server's own; without any prefix. */
  readonly request_id: string;
  /** Index among the choices of the call. */
  readonly choice: number;
  /** Path of the route that the call came by. */
  readonly endpoint: string;
  readonly prompt_form: PromptForm;
  /** `X-Session-ID`, when the caller sent one. */
  readonly session_id: string | null;
  readonly scenario: string;
  readonly rule: number;
  readonly prompt_ids: readonly number[];
  readonly response_ids: readonly number[];
  /** Log-probability of each response id in the policy itself. */
  readonly raw_logprobs: readonly number[];
  /** Log-probability of each response id in the distribution that it was drawn from. */
  readonly processed_logprobs: readonly number[];
  readonly version_spans: readonly VersionSpan[];
  readonly params: SamplingParams;
  readonly finish_reason: FinishReason;
  readonly stop_reason: string | number | null;
  /** Response length at which the call was aborted; null: it was not. */
  readonly aborted_at: number | null;
  /** Faults injected into this call, which made the reply differ from this entry or the reply malformed. */
  readonly faults: readonly string[];
  readonly started_ms: number;
  readonly ended_ms: number;
};

export type LedgerFilter = { readonly sessionId?: string; readonly requestId?: string };

/**
 * Append-only record of everything sampled. Memory keeps the latest `limit` entries; the file, when there is one, keeps
 * all of them, one JSON object per line, each written before the call's last event is sent.
 */
export class Ledger {
  private readonly limit: number;
  private readonly file: number | null;
  private kept: LedgerEntry[] = [];
  private appended = 0;
  private closed = false;

  constructor(options: { readonly limit: number; readonly path?: string | undefined }) {
    this.limit = options.limit;
    if (options.path !== undefined) mkdirSync(dirname(options.path), { recursive: true });
    this.file = options.path === undefined ? null : openSync(options.path, 'a');
  }

  /** Entries appended since the start, those that memory no longer holds included. */
  get total(): number {
    return this.appended;
  }

  append(entry: Omit<LedgerEntry, 'sequence'>): LedgerEntry {
    const complete = { sequence: this.appended++, ...entry };
    if (this.file !== null && !this.closed) writeSync(this.file, `${JSON.stringify(complete)}\n`);
    this.kept.push(complete);
    // Cutting only at twice the limit keeps the cost per entry constant.
    if (this.kept.length >= 2 * this.limit) this.kept = this.kept.slice(-this.limit);
    return complete;
  }

  /** Entries in order of sampling's end; of the latest `limit`. */
  entries(filter: LedgerFilter = {}): LedgerEntry[] {
    return this.kept
      .slice(-this.limit)
      .filter(
        (entry) =>
          (filter.sessionId === undefined || entry.session_id === filter.sessionId) &&
          (filter.requestId === undefined || entry.request_id === filter.requestId),
      );
  }

  close(): void {
    if (this.closed) return;
    this.closed = true;
    if (this.file !== null) closeSync(this.file);
  }
}
