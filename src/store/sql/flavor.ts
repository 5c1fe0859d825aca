import { type RawBuilder, sql } from 'kysely';
import type { SessionProgress } from '../../schema/index.ts';

/** What SQLite and PostgreSQL say differently. Everything else in this folder is the same for both. */
export interface SqlFlavor {
  /** A list of texts as one parameter, so that a statement has the same text for every length. Use as `x in ${…}`. */
  texts(values: readonly string[]): RawBuilder<string>;
  /** Rows `(session_id, sample_index)` in the order given, of columns of these names. */
  newSessions(list: readonly { readonly session_id: string; readonly sample_index: number }[]): RawBuilder<unknown>;
  /** Rows of the columns of a SessionProgress. */
  progress(reported: readonly SessionProgress[]): RawBuilder<unknown>;
  /** Goes after `sessions` where the queue is read by trainer: names the index where the planner would not find it. */
  readonly byTrainer: RawBuilder<unknown>;
  /** Ends a select whose rows nobody else may change meanwhile. */
  readonly forUpdate: RawBuilder<unknown>;
  /** As `forUpdate`, leaving out rows that another transaction holds. */
  readonly skipLocked: RawBuilder<unknown>;
  /** The larger of two values. */
  readonly greatest: 'max' | 'greatest';
  /** Keeps other transactions from assigning result cursors until this one ends. A condition that is always true. */
  readonly cursorLock: RawBuilder<boolean>;
  /** The last result cursor that was given out, 0 when there was none; in PostgreSQL also by transactions that are not seen yet. */
  readonly lastCursor: RawBuilder<number>;
  /** A statement that keeps others from deciding about a task id that may not exist yet until this transaction ends; null: nobody can. */
  readonly taskIdLock: ((taskId: string) => RawBuilder<unknown>) | null;
}

/** SQLite has one writer at a time, so nothing needs a lock. */
export const SQLITE_FLAVOR: SqlFlavor = {
  texts: (values) => sql<string>`(select value from json_each(${JSON.stringify(values)}))`,
  newSessions: (list) => sql`
    (select value ->> 0 as session_id, value ->> 1 as sample_index, key as place
    from json_each(${JSON.stringify(list.map((one) => [one.session_id, one.sample_index]))}))`,
  progress: (reported) => sql`
    (select value ->> 0 as session_id, value ->> 1 as epoch, value ->> 2 as status, value ->> 3 as turns,
      value ->> 4 as sampled_tokens
    from json_each(${JSON.stringify(reported.map((one) => [one.session_id, one.epoch, one.status, one.turns, one.sampled_tokens]))}))`,
  // Without statistics it takes the index by status, and sorts the whole queue.
  byTrainer: sql`indexed by sessions_fifo`,
  forUpdate: sql``,
  skipLocked: sql``,
  greatest: 'max',
  cursorLock: sql<boolean>`true`,
  lastCursor: sql<number>`coalesce((select seq from sqlite_sequence where name = 'results'), 0)`,
  taskIdLock: null,
};
