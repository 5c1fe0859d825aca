import type { MeasureKind, Outcome, UnusableReason } from '@floe-rl/core/schema';

/**
 * The data of an ended session for lists, filters and sums, in columns, so that no query parses JSON. The row is added in the transaction that
 * ends the session, and removed together with its task. `fact_no` increases in the order in which sessions ended. Durations are `null` for a
 * stage that the session did not reach.
 */
export type FactRow = {
  readonly fact_no: number;
  readonly session_id: string;
  readonly task_id: string;
  readonly sample_index: number;
  readonly trainer: string;
  readonly harness: string;
  /** The agent that the harness `floe` ran; `null` for any other harness. */
  readonly agent: string | null;
  /** `metadata.data_source` of the task; `null` when it is no text. */
  readonly source: string | null;
  /** `metadata.split` of the task; `null` when it is no text. */
  readonly split: string | null;
  readonly outcome: Outcome;
  /** Why the sample is not usable for training; `null` when it is usable. */
  readonly unusable: UnusableReason | null;
  readonly reward: number | null;
  /** The policy version of the last sampled token; `null` when it is unknown. */
  readonly version: string | null;
  /** The policy version of the first sampled token; `null` when it is unknown. */
  readonly first_version: string | null;
  /** The dialect of the model calls; `several` for more than one, and `null` without calls. */
  readonly dialect: string | null;
  /**
   * The kind of the engines that sampled; `several` for more than one kind. `null` when the session made no calls, or when an engine is not
   * known any more.
   */
  readonly engine: string | null;
  readonly node_id: string | null;
  readonly attempt: number;
  readonly turns: number;
  readonly completions: number;
  readonly sampled_tokens: number;
  readonly trained_tokens: number;
  readonly traces: number;
  readonly queued_ms: number | null;
  readonly init_ms: number | null;
  readonly ready_ms: number | null;
  readonly running_ms: number | null;
  readonly postrun_ms: number | null;
  readonly total_ms: number | null;
  /** Sum of the times that engines took for the session's replies; `null` when the node did not report it. */
  readonly engine_ms: number | null;
  /** Time from the lease to the result of a session with a sandbox; `null` for a session without a sandbox. */
  readonly sandbox_ms: number | null;
  /**
   * Unix time in whole milliseconds at which the session ended. Other times are service time, but people select sessions by the time of the
   * wall clock.
   */
  readonly ended_ms: number;
};

/** A named number of a session, such as the calls of one tool. Measures are summed with the facts, by kind, name and bin. */
export type Measure = {
  readonly kind: MeasureKind;
  readonly name: string;
  /** For answered calls of a tool, the interval of their time (`timeIntervalOf`); -1 for any other measure. */
  readonly bin: number;
  readonly count: number;
  /** Calls that failed, and parts of the reward that could not be computed. */
  readonly failures: number;
  /** Sum of the times in ms, or of the rewards. */
  readonly sum: number;
  readonly square_sum: number;
};

export type NewFactRow = Omit<FactRow, 'fact_no'> & { readonly measures: readonly Measure[] };

/** Columns of texts. Facts can be selected and grouped by them. */
export type FactTextColumn =
  | 'task_id'
  | 'trainer'
  | 'harness'
  | 'agent'
  | 'source'
  | 'split'
  | 'outcome'
  | 'unusable'
  | 'version'
  | 'dialect'
  | 'engine'
  | 'node_id';

/** Columns of numbers. Facts can be selected and ordered by them. */
export type FactNumberColumn = 'reward' | 'turns' | 'sampled_tokens' | 'total_ms';

/** A column that facts can be grouped by. `hour_ms` is the hour in which the session ended. */
export type FactGroupColumn = FactTextColumn | 'hour_ms';

/** Selects facts. All parts must hold; an absent part holds for every fact. */
export type FactFilter = {
  /** The values that a column may have. */
  readonly values: Readonly<Partial<Record<FactTextColumn, readonly (string | null)[]>>>;
  /** Whether the sample must be usable or unusable; `null` for either. */
  readonly usable: boolean | null;
  /** Least and greatest value of a column. A fact without a value does not match. */
  readonly ranges: Readonly<Partial<Record<FactNumberColumn, { readonly min?: number; readonly max?: number }>>>;
  /** Kinds and names of measures. The fact must have at least one of these measures; absent for any fact. */
  readonly measures?: readonly Pick<Measure, 'kind' | 'name'>[] | undefined;
  /** Phrases that the indexed words of the session must have, all of them; absent for any session. */
  readonly phrases?: readonly string[] | undefined;
  /** Unix time in whole milliseconds from which on the session ended; `null` for any time. */
  readonly sinceMs: number | null;
  /** Unix time in whole milliseconds before which the session ended; `null` for any time. */
  readonly untilMs: number | null;
};

/**
 * The order of a list of facts: by the end of the session (`fact_no`) or by a column of numbers. Facts with equal values are ordered newest
 * first, and facts without a value come last in either direction.
 */
export type FactOrder = { readonly by: 'fact_no' | FactNumberColumn; readonly descending: boolean };

/** Where a page of facts begins: after the fact with the number `factNo`. `value` is that fact's value in the column that orders the list. */
export type FactPosition = { readonly factNo: number; readonly value: number | null };

/** Sums over facts. The columns `timed` and `queued` count the facts with a `total_ms` and a `queued_ms`. */
export type FactSums = {
  readonly sessions: number;
  readonly usable: number;
  readonly rewards: number;
  readonly reward_sum: number;
  readonly reward_square_sum: number;
  readonly turns: number;
  readonly sampled_tokens: number;
  readonly trained_tokens: number;
  readonly timed: number;
  readonly total_ms: number;
  readonly queued: number;
  readonly queued_ms: number;
  readonly engine_ms: number;
  readonly sandbox_ms: number;
};

/** Sums of the measures with one kind, name and bin, over one group of facts. */
export type MeasureTotals = Measure & Pick<FactTotals, 'by'>;

/** Sums of measures. `isPartial` means that only the newest facts were read. */
export type MeasureSums = { readonly measures: readonly MeasureTotals[]; readonly isPartial: boolean };

/** Sums over one group of facts. `by` has the values of the columns that the facts are grouped by. `hour_ms` is Unix time in milliseconds. */
export type FactTotals = FactSums & { readonly by: Readonly<Partial<Record<FactGroupColumn, string | number | null>>> };

/**
 * The least and the greatest value of a column, both `null` when no fact has a value. `valued` counts the facts with a value, and `without`
 * the facts without one.
 */
export type FactSpread = {
  readonly min: number | null;
  readonly max: number | null;
  readonly valued: number;
  readonly without: number;
};

/** The facts of one task that match a filter. `fact_no` and `ended_ms` belong to the newest fact. */
export type FactGroupRow = Pick<FactRow, 'fact_no' | 'task_id' | 'trainer' | 'harness' | 'source' | 'ended_ms'> & {
  readonly sessions: number;
  readonly usable: number;
  readonly rewards: number;
  readonly reward_sum: number;
  readonly reward_min: number | null;
  readonly reward_max: number | null;
  /** Least and greatest reward of the usable samples. */
  readonly usable_reward_min: number | null;
  readonly usable_reward_max: number | null;
};

/** The facts of ended sessions, and their totals by hour. */
export interface FactTable {
  /**
   * Adds the facts of a session that ends in this transaction. Facts become visible to readers in the order of their numbers: once a reader
   * has seen a number, no smaller one is added. `words` are the words that a search finds the session by, in lower case and separated by
   * spaces. By default there are none.
   */
  add(row: NewFactRow, words?: string): Promise<void>;
  /** Returns at most `limit` facts in the given order, beginning after `after`. */
  list(filter: FactFilter, order: FactOrder, after: FactPosition | null, limit: number): Promise<FactRow[]>;
  /** Returns the version of the first token of each usable session of these tasks. */
  firstVersions(taskIds: readonly string[]): Promise<Pick<FactRow, 'task_id' | 'first_version'>[]>;
  /** Counts facts. Resolves with `null` when more than `maxRead` facts would have to be read. */
  count(filter: FactFilter, maxRead: number): Promise<number | null>;
  /**
   * Sums facts by the values of some columns, ordered by these values with `null` last. Returns at most `limit` sums. When the totals by hour
   * have all columns that the filter and `by` need, they are read in place of the facts that are part of them.
   */
  totals(filter: FactFilter, by: readonly FactGroupColumn[], limit: number): Promise<FactTotals[]>;
  /**
   * Sums the measures of facts by kind, name and bin, and by the values of some columns, in no order. Uses the totals in the same cases as
   * {@link totals}. In all other cases, only the newest `maxRead` facts that match are read.
   */
  measures(
    filter: FactFilter,
    kinds: readonly MeasureKind[],
    by: readonly FactGroupColumn[],
    maxRead: number,
  ): Promise<MeasureSums>;
  spread(filter: FactFilter, column: FactNumberColumn): Promise<FactSpread>;
  /**
   * Counts facts in `bins` intervals of equal width that begin at `from`. The last interval also has all greater values. Returns the number of
   * facts in each interval.
   */
  histogram(
    filter: FactFilter,
    column: FactNumberColumn,
    intervals: { readonly from: number; readonly width: number; readonly bins: number },
  ): Promise<number[]>;
  /**
   * Returns at most `limit` tasks that have matching facts, in descending order of the number of their newest matching fact. With `before`,
   * only tasks whose newest fact has a lower number than `before` are returned.
   */
  groups(filter: FactFilter, before: number | null, limit: number): Promise<FactGroupRow[]>;
  /** Returns the number of facts that are not part of the totals yet, at most `limit`. */
  unfolded(limit: number): Promise<number>;
  /** Adds the oldest facts that are not part of the totals yet to them, at most `limit`. Resolves to their number. */
  fold(limit: number): Promise<number>;
}
