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

/** The tables as kysely sees them. `schema.ts` of each database creates them. */
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
  /** `trainer` is empty for consumers of all trainers' results. */
  consumers: { consumer: string; trainer: string; cursor: number };
};

/** Builds and runs statements on one connection. */
export type QueryBuilder = Kysely<Database>;

/** The SQL that differs between SQLite and PostgreSQL. All other statements in this folder are the same for both. */
export interface SqlFlavor {
  /** A list of texts as one parameter, so that a statement has the same text for every length. Used as `x in ${…}`. */
  texts(values: readonly string[]): RawBuilder<string>;
  /** Rows `(session_id, sample_index, ordinal)` in the given order. */
  newSessions(list: readonly { readonly session_id: string; readonly sample_index: number }[]): RawBuilder<unknown>;
  /** Rows with the columns of a SessionProgress. */
  progress(reported: readonly SessionProgress[]): RawBuilder<unknown>;
  /** Follows `sessions` where the queue is read by trainer. Names the index where the planner would not choose it. */
  readonly byTrainer: RawBuilder<unknown>;
  /** Ends a select, and locks its rows until the transaction ends. */
  readonly forUpdate: RawBuilder<unknown>;
  /** Like `forUpdate`, and skips rows that another transaction has locked. */
  readonly skipLocked: RawBuilder<unknown>;
  /** The function that returns the greater of two values. */
  readonly greatest: 'max' | 'greatest';
  /** Prevents other transactions from assigning result cursors until this one ends. A condition that is always true. */
  readonly cursorLock: RawBuilder<boolean>;
  /** The greatest result cursor that was assigned; 0 when there was none. In PostgreSQL it includes transactions that have not committed. */
  readonly lastCursor: RawBuilder<number>;
  /**
   * A statement that locks a task id, which may not exist yet, until the transaction ends. `null` where only one transaction writes at
   * a time.
   */
  readonly taskIdLock: ((taskId: string) => RawBuilder<unknown>) | null;
}

/** Thrown inside a transaction that has read outdated rows. The store rolls it back and runs its work once more. */
export class OutdatedRead extends Error {}

/**
 * The format of the tables, stored in every database. A database with another format is refused. The formats below this one belonged
 * to versions that were never released, so nothing converts them.
 */
export const SCHEMA_FORMAT = 6;

/** The error for a database with another format. `database` names it, and `remedy` says where to start with an empty one. */
export function wrongFormat(database: string, format: number, remedy: string): FloeError {
  const comparison = `the database ${database} has format ${format}, and this floe needs format ${SCHEMA_FORMAT}`;
  const advice =
    format > SCHEMA_FORMAT
      ? `a newer floe has written it: run that version, or ${remedy}`
      : `format ${format} was never released and cannot be converted: ${remedy}`;
  return new FloeError('setup_failed', `${comparison}; ${advice}`, { format, expected_format: SCHEMA_FORMAT });
}
