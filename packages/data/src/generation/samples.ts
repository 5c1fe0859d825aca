import type { SessionResult } from '@floe-rl/core/schema';
import { type Condition, isAccepted } from './acceptance-conditions.ts';
import type { LineLocation, SampleId } from './journal.ts';

/** How often an empty generation is repeated. */
const MAX_RETRIES = 1;

/** A generation in a journal, without its token data. */
export type JournaledSample = SampleId & {
  readonly accepted: boolean;
  /** Whether the session ended without a reply of the model, so that it is repeated once. */
  readonly empty: boolean;
  readonly outcome: SessionResult['outcome'];
  readonly reward: number | null;
  readonly location: LineLocation;
};

/** Summarizes a result that a journal contains at `location`. */
export function journaledSample(
  id: SampleId,
  result: SessionResult,
  conditions: readonly Condition[],
  location: LineLocation,
): JournaledSample {
  const { row, sample, retry } = id;
  const { outcome, reward } = result;
  return {
    row,
    sample,
    retry,
    accepted: isAccepted(result, conditions),
    empty: outcome === 'no_completions' || result.unusable === 'no_tokens',
    outcome,
    reward,
    location,
  };
}

/** All generations in the journals of a run. When a sample was repeated, only its last generation counts. */
export class SampleIndex {
  private readonly rows = new Map<number, Map<number, JournaledSample>>();
  private readonly refusals = new Map<number, string>();

  has({ row, sample, retry }: SampleId): boolean {
    return (this.rows.get(row)?.get(sample)?.retry ?? -1) >= retry;
  }

  add(entry: JournaledSample): void {
    if (this.has(entry)) return;
    const samples = this.rows.get(entry.row) ?? new Map<number, JournaledSample>();
    this.rows.set(entry.row, samples.set(entry.sample, entry));
  }

  /** Returns the samples of a row, by their number. */
  ofRow(row: number): JournaledSample[] {
    return [...(this.rows.get(row)?.values() ?? [])].sort((a, b) => a.sample - b.sample);
  }

  refuse(row: number, message: string): void {
    this.refusals.set(row, message);
  }

  /** Returns the reason why the server refused the task of a row; `null` when it was not refused, or when the row has had samples since. */
  refusalOf(row: number): string | null {
    return this.rows.has(row) ? null : (this.refusals.get(row) ?? null);
  }
}

/** How many samples a row gets. */
export type SamplePolicy = {
  readonly samples: number;
  /** Number of accepted samples after which a row gets no further samples; `null`: every row gets all samples. */
  readonly keep: number | null;
};

/**
 * Decides which samples of one row are generated. With `keep`, the number of running samples is at most the number of accepted samples that
 * the row still lacks. So a row always gets the shortest sequence of samples that has enough accepted samples, whatever the order in which
 * they end.
 */
export class RowPlan {
  readonly row: number;
  private readonly policy: SamplePolicy;
  private readonly known = new Map<number, JournaledSample>();
  private readonly running = new Set<number>();
  private isRefused = false;

  constructor(row: number, policy: SamplePolicy, known: readonly JournaledSample[]) {
    this.row = row;
    this.policy = policy;
    for (const entry of known) this.known.set(entry.sample, entry);
  }

  /** Returns a sample to submit, which then counts as running; `null` when none is needed now. */
  next(): SampleId | null {
    if (this.isRefused) return null;
    const { samples, keep } = this.policy;
    for (let sample = 0; sample < samples; sample++) {
      if (this.running.has(sample)) continue;
      const entry = this.known.get(sample);
      if (entry !== undefined && isSettled(entry)) continue;
      if (keep !== null && this.accepted() + this.running.size >= keep) return null;
      this.running.add(sample);
      return { row: this.row, sample, retry: entry === undefined ? 0 : entry.retry + 1 };
    }
    return null;
  }

  record(entry: JournaledSample): void {
    this.known.set(entry.sample, entry);
    this.running.delete(entry.sample);
  }

  /** Ends the row, because the server refuses its task. */
  refuse(): void {
    this.isRefused = true;
    this.running.clear();
  }

  /** Whether the row needs no further sample and none is running. */
  get isDone(): boolean {
    if (this.running.size > 0) return false;
    const { samples, keep } = this.policy;
    if (this.isRefused || (keep !== null && this.accepted() >= keep)) return true;
    for (let sample = 0; sample < samples; sample++) {
      const entry = this.known.get(sample);
      if (entry === undefined || !isSettled(entry)) return false;
    }
    return true;
  }

  private accepted(): number {
    return [...this.known.values()].filter((entry) => entry.accepted).length;
  }
}

function isSettled({ empty, retry }: JournaledSample): boolean {
  return !empty || retry >= MAX_RETRIES;
}
