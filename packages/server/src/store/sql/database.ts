import type { SessionProgress, TaskState } from '@floe-rl/core/schema';
import { type Generated, type Kysely, type RawBuilder, sql } from 'kysely';
import type { FactRow, FactSums } from '../facts.ts';
import type {
  AliasRow,
  BatchDataRow,
  BatchGroupChangeRow,
  BatchGroupRow,
  BatchStreamRow,
  CallbackRow,
  DeliveryRow,
  DurationRow,
  EngineRow,
  EngineStateRow,
  NodeRow,
  ResultRow,
  SessionRow,
  TaskRow,
} from '../rows.ts';

/** The columns of all tables, as types for the query builder kysely. The file `schema.ts` has the SQL that creates them. */
export type Database = {
  tasks: TaskRow & { order_no: Generated<number> };
  /** Changes of the numbers of tasks, which triggers on `tasks` write. Their sums are the numbers of tasks by status. */
  task_counts: { status: TaskState; tasks: number };
  sessions: Omit<SessionRow, 'queue_order'> & { queue_order: Generated<number> };
  results: Omit<ResultRow, 'cursor'> & { cursor: Generated<number> };
  deliveries: DeliveryRow;
  /** The results that their trainers have not collected. A trigger on `results` adds them, so that rows of `results` never change. */
  uncollected: { cursor: number; task_id: string; trainer: string; bytes: number };
  nodes: NodeRow;
  /** The state of the engines of each node, as JSON text. */
  node_engines: { node_id: string; info: string };
  callbacks: CallbackRow;
  tombstones: { task_id: string; expires_ms: number };
  engines: EngineRow;
  engine_state: EngineStateRow & { id: number };
  service_time: { id: number; now_ms: number };
  durations: DurationRow;
  aliases: AliasRow;
  /** How far consumers have read the results. `trainer` is an empty text for a consumer that reads the results of all trainers. */
  consumers: { consumer: string; trainer: string; cursor: number };
  batch_streams: BatchStreamRow & { order_no: Generated<number> };
  batch_rows: BatchDataRow;
  batch_plans: { batch_id: string; epoch: number; rows: string };
  batch_groups: BatchGroupRow;
  /** Changes of groups, which triggers on `batch_groups` write. Their sums are the numbers of groups by state and reason. */
  batch_group_changes: BatchGroupChangeRow;
  session_facts: Omit<FactRow, 'fact_no'> & { fact_no: Generated<number> };
  /** Sums of facts by hour and other columns. `source` and `version` are an empty text where a fact has no value. */
  session_totals: Pick<FactRow, 'trainer' | 'harness' | 'outcome'> &
    FactSums & { hour_ms: number; source: string; version: string };
  /** `folded_no` is the number of the newest fact that is part of `session_totals`. All facts with lower numbers are part of them too. */
  session_totals_state: { id: number; folded_no: number };
};

/** Builds and runs SQL statements on one connection. */
export type QueryBuilder = Kysely<Database>;

/**
 * The pieces of SQL that differ between SQLite and PostgreSQL. All other SQL in this folder is the same for the two databases.
 */
export interface SqlFlavor {
  /**
   * Returns SQL for a list of texts as one parameter, used as `x in ${…}`. The statement's text does not depend on the length of the list,
   * so it is prepared only once.
   */
  texts(values: readonly string[]): RawBuilder<string>;
  /** Returns a subquery with the columns `key` and `value`, and one row for each entry. */
  pairs(entries: ReadonlyMap<string, string>): RawBuilder<unknown>;
  /** Returns what follows `from` for the elements of a column that has a JSON array. Each is `entry.value`, from which `->>` reads. */
  entries(column: RawBuilder<unknown>): RawBuilder<unknown>;
  /** Returns a subquery with the columns `session_id`, `sample_index` and `ordinal`, and one row for each session in the given order. */
  newSessions(list: readonly { readonly session_id: string; readonly sample_index: number }[]): RawBuilder<unknown>;
  /** Returns a subquery with the columns of a `SessionProgress` and one row for each reported session. */
  progress(reported: readonly SessionProgress[]): RawBuilder<unknown>;
  /**
   * Returns a statement that adds words to the index of words, so that a search finds the session. The facts of the session must have been
   * added.
   */
  addWords(sessionId: string, words: string): RawBuilder<unknown>;
  /** Returns a subquery with the numbers of the facts whose words contain all phrases. */
  factsWith(phrases: readonly string[]): RawBuilder<unknown>;
  /** Name of the column of `session_words` that has the number of the fact. */
  readonly wordsKey: 'rowid' | 'fact_no';
  /**
   * SQL to insert after the table name `sessions` where a query reads the queue by trainer. It names the index, because the planner of SQLite
   * would choose a slower one.
   */
  readonly byTrainer: RawBuilder<unknown>;
  /** SQL to append to a select statement so that its rows are locked until the transaction ends. */
  readonly forUpdate: RawBuilder<unknown>;
  /** SQL to append to a select statement so that its rows are locked, and rows that another transaction has locked are skipped. */
  readonly skipLocked: RawBuilder<unknown>;
  /** Name of the SQL function that returns the greater of two values. */
  readonly greatest: 'max' | 'greatest';
  /**
   * SQL condition that is always true. Evaluating it keeps other transactions from assigning result cursors until this transaction ends.
   */
  readonly cursorLock: RawBuilder<boolean>;
  /**
   * SQL for the greatest result cursor that was ever assigned; 0 when none was. In PostgreSQL it includes cursors of transactions that have
   * not committed.
   */
  readonly lastCursor: RawBuilder<number>;
  /**
   * Returns a statement that locks the id of a task until the transaction ends, even if no such task exists. `null` for a database in which
   * only one transaction at a time can write.
   */
  readonly taskIdLock: ((taskId: string) => RawBuilder<unknown>) | null;
}

/**
 * SQL to append to statements whose text depends on the choices of a caller. There are thousands of such statements, so they are not kept in
 * prepared form: they would leave no room for the frequent ones.
 */
export const AD_HOC = sql.raw('/* ad hoc */');

/** Whether a statement ends with {@link AD_HOC}. */
export function isAdHoc(text: string): boolean {
  return text.endsWith('/* ad hoc */');
}

/**
 * Error that is thrown inside a transaction that has read outdated rows. The store then rolls the transaction back and runs its work once
 * more.
 */
export class OutdatedRead extends Error {}
