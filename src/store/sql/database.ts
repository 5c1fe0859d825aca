import type { Generated, Kysely, RawBuilder } from 'kysely';
import { FloeError } from '../../core/errors.ts';
import type { SessionProgress } from '../../schema/index.ts';
import type {
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

/** The columns of all tables, for kysely. `schema.ts` of each database creates the tables. */
export type Database = {
  tasks: TaskRow & { order_no: Generated<number> };
  sessions: Omit<SessionRow, 'queue_order'> & { queue_order: Generated<number> };
  results: Omit<ResultRow, 'cursor'> & { cursor: Generated<number> };
  deliveries: DeliveryRow;
  nodes: NodeRow;
  callbacks: CallbackRow;
  tombstones: { task_id: string; expires_ms: number };
  engines: EngineRow;
  engine_state: EngineStateRow & { id: number };
  service_time: { id: number; now_ms: number };
  durations: DurationRow;
  /** The cursors of consumers. `trainer` is an empty text for a consumer that reads the results of all trainers. */
  consumers: { consumer: string; trainer: string; cursor: number };
};

/** Builds and runs statements on one connection. */
export type QueryBuilder = Kysely<Database>;

/** The pieces of SQL that differ between SQLite and PostgreSQL. All other SQL in this folder is the same for both. */
export interface SqlFlavor {
  /**
   * A list of texts as one parameter, used as `x in ${…}`. A statement has the same text for every length of the list, so it is prepared
   * once.
   */
  texts(values: readonly string[]): RawBuilder<string>;
  /** A subquery with the columns session_id, sample_index and ordinal, with one row for each session in the given order. */
  newSessions(list: readonly { readonly session_id: string; readonly sample_index: number }[]): RawBuilder<unknown>;
  /** A subquery with the columns of a SessionProgress and one row for each reported session. */
  progress(reported: readonly SessionProgress[]): RawBuilder<unknown>;
  /**
   * Inserted after the table name `sessions` where the queue is read by trainer. It names the index for a planner that would choose
   * another one.
   */
  readonly byTrainer: RawBuilder<unknown>;
  /** Inserted at the end of a select whose rows are to be locked until the transaction ends. */
  readonly forUpdate: RawBuilder<unknown>;
  /** Like `forUpdate`, but rows that another transaction has locked are skipped. */
  readonly skipLocked: RawBuilder<unknown>;
  /** The name of the function that returns the greater of two values. */
  readonly greatest: 'max' | 'greatest';
  /**
   * A condition that is always true. Evaluating it prevents other transactions from assigning result cursors until this transaction ends.
   */
  readonly cursorLock: RawBuilder<boolean>;
  /**
   * The greatest result cursor that was ever assigned; 0 when none was. In PostgreSQL it includes cursors of transactions that have not
   * committed.
   */
  readonly lastCursor: RawBuilder<number>;
  /**
   * Returns a statement that locks a task id, which may not exist yet, until the transaction ends. `null` when only one transaction at a
   * time can write.
   */
  readonly taskIdLock: ((taskId: string) => RawBuilder<unknown>) | null;
}

/** Thrown inside a transaction that has read outdated rows. The store then rolls the transaction back and runs its work once more. */
export class OutdatedRead extends Error {}

/**
 * Number of the tables' format, which is stored in every database. A database with another number is refused. Earlier formats belonged to
 * versions that were never released, so nothing converts them.
 */
export const SCHEMA_FORMAT = 6;

/**
 * Creates the error for a database with another format. `database` names the database, and `remedy` states how to start with an
 * empty one.
 */
export function wrongFormat(database: string, format: number, remedy: string): FloeError {
  const comparison = `the database ${database} has format ${format}, and this floe needs format ${SCHEMA_FORMAT}`;
  const advice =
    format > SCHEMA_FORMAT
      ? `a newer floe has written it: run that version, or ${remedy}`
      : `format ${format} was never released and cannot be converted: ${remedy}`;
  return new FloeError('setup_failed', `${comparison}; ${advice}`, { format, expected_format: SCHEMA_FORMAT });
}
