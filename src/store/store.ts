import type { SessionProgress, SessionStatus, TaskState, UnusableReason } from '../schema/index.ts';
import type {
  CallbackRow,
  ConsumerRow,
  DeliveryRow,
  EndedCounts,
  EngineRow,
  EngineStateRow,
  NewSession,
  NodeRow,
  ResultBlobs,
  ResultWithSummary,
  SessionPatch,
  SessionRow,
  TaskPatch,
  TaskRow,
  TrainerLoad,
} from './rows.ts';

/**
 * Durable rows in tables. A store makes transactions atomic, isolated and durable; the rules of the control plane are in `rollout/`.
 * Several servers may share one store in PostgreSQL.
 */
export interface Store {
  /**
   * Runs `work` in one transaction, and resolves after the commit is on disk. When `work` throws, nothing is changed and the error is
   * passed on. When the store itself fails, this throws `store_unavailable`, nothing is changed, and a retry may succeed.
   *
   * `work` must await nothing but calls of the given tables, and must change nothing but them, because it is run repeatedly when
   * another server's transaction conflicts. Independent calls may be made concurrently if all of them are awaited even after a failure
   * (`settleAll`); they take effect in the order in which they were made. Rows on which a decision depends are read with a `lock`
   * method. Nodes are locked before tasks, tasks before their sessions, and rows of one table by id, so that no two transactions wait
   * for each other.
   */
  transaction<T>(work: (tables: StoreTables) => Promise<T>): Promise<T>;
  /** Runs `work`, which only reads, on one consistent snapshot. */
  read<T>(work: (tables: StoreTables) => Promise<T>): Promise<T>;
  /** Sends a message to the other servers on this store. Delivery is best effort; servers also poll for the changes it reports. */
  announce(message: string): void;
  /** Calls `listener` with the messages of other servers. Returns a function that stops it. */
  listen(listener: (message: string) => void): () => void;
  /** Waits for the running transactions. Later ones are refused with `not_ready`. */
  close(): Promise<void>;
}

export interface StoreTables {
  readonly tasks: TaskTable;
  readonly sessions: SessionTable;
  readonly results: ResultTable;
  readonly nodes: NodeTable;
  readonly callbacks: CallbackTable;
  readonly tombstones: TombstoneTable;
  readonly serviceTime: ServiceTimeTable;
  readonly engines: EngineTable;
  readonly durations: DurationTable;
}

export interface TaskTable {
  /** Prevents other transactions from adding a task with this id or idempotency key until this one ends. Called before either is read. */
  reserve(taskId: string | null, idempotencyKey: string | null): Promise<void>;
  /** Throws `conflict` when the id or the idempotency key is already in use. */
  insert(row: TaskRow): Promise<void>;
  get(taskId: string): Promise<TaskRow | undefined>;
  /** Like `get`, and locks the row until the transaction ends. */
  lock(taskId: string): Promise<TaskRow | undefined>;
  getMany(taskIds: readonly string[]): Promise<TaskRow[]>;
  findByKey(idempotencyKey: string): Promise<TaskRow | undefined>;
  /** Newest first. */
  list(filter: { status: TaskState | null; limit: number }): Promise<TaskRow[]>;
  update(taskId: string, patch: TaskPatch): Promise<void>;
  /** Raises the counters, and returns the changed row. */
  addEnded(taskId: string, added: EndedCounts): Promise<TaskRow>;
  /** Running tasks whose deadline has passed. */
  overdue(nowMs: number, limit: number): Promise<TaskRow[]>;
  /** Cancelled tasks with open sessions. */
  unfinishedCancelled(limit: number): Promise<TaskRow[]>;
  countByStatus(): Promise<ReadonlyMap<TaskState, number>>;
  /**
   * Removes up to `limit` tasks that ended before `endedBeforeMs` and whose results are collected, with all their rows. Returns how many
   * it removed.
   */
  removeEnded(endedBeforeMs: number, limit: number): Promise<number>;
}

/** The order of sessions with the same trainer and priority. `longest_first` orders by `expected_ms`, then first in, first out. */
export type QueueOrder = 'fifo' | 'longest_first';

/**
 * The order of one claim. `overdue` claims, of the first `OVERDUE_CANDIDATES` sessions in first-in-first-out order, those of the highest
 * priority that have waited for more than `OVERDUE_FACTOR` times their expected duration.
 */
export type ClaimOrder = QueueOrder | 'overdue';

/** When a session has waited this many times its own duration, running it first delays the longer sessions less than it was delayed. */
export const OVERDUE_FACTOR = 4;
/** How many sessions at the front of the queue are checked: enough for the claim of a large node, and cheap with a long queue. */
export const OVERDUE_CANDIDATES = 64;

export type ClaimRequest = {
  readonly limit: number;
  readonly nodeId: string;
  readonly trainer: string;
  readonly order: ClaimOrder;
  readonly nowMs: number;
  readonly leaseExpiresMs: number;
  readonly updatedAt: string;
};

/** The fields that the sessions of one insert have in common. */
export type NewSessions = Pick<
  SessionRow,
  | 'task_id'
  | 'trainer'
  | 'priority'
  | 'max_attempts'
  | 'not_before_ms'
  | 'queued_since_ms'
  | 'expected_ms'
  | 'created_at'
>;

export interface SessionTable {
  /** Adds queued sessions in the given order. */
  insert(shared: NewSessions, sessions: readonly NewSession[]): Promise<void>;
  get(sessionId: string): Promise<SessionRow | undefined>;
  /** Like `get`, and locks the row until the transaction ends. */
  lock(sessionId: string): Promise<SessionRow | undefined>;
  getMany(sessionIds: readonly string[]): Promise<SessionRow[]>;
  /** Like `getMany`, ordered by id, and locks the rows until the transaction ends. */
  lockMany(sessionIds: readonly string[]): Promise<SessionRow[]>;
  /** The sessions of a task, ordered by sample index; with `page`, at most `limit` sessions after an index. */
  ofTask(taskId: string, page?: Page): Promise<SessionRow[]>;
  /**
   * Locks up to `limit` open sessions of a task, leased ones first. Sessions that another transaction has locked are skipped: that
   * transaction may be waiting for the lock on result cursors, which the caller may hold.
   */
  lockOpen(taskId: string, limit: number): Promise<SessionRow[]>;
  idsOfTask(taskId: string): Promise<string[]>;
  /** The number of a task's unusable sessions for each reason. */
  unusable(taskId: string): Promise<ReadonlyMap<UnusableReason, number>>;
  /**
   * Leases queued sessions of one trainer to a node, and returns them: higher priority first, then in the requested order. Sessions
   * that are not due, that avoid the node, or that a concurrent claim has locked are skipped.
   */
  claim(request: ClaimRequest): Promise<SessionRow[]>;
  update(sessionId: string, patch: SessionPatch): Promise<void>;
  renew(sessionIds: readonly string[], leaseExpiresMs: number): Promise<void>;
  /**
   * The ids of the reported sessions whose stored row differs from the report: another node or epoch, another progress, or a lease
   * that expires before `freshUntilMs`.
   */
  differing(nodeId: string, reported: readonly SessionProgress[], freshUntilMs: number): Promise<string[]>;
  /** Stores the reported status, turns and tokens of sessions. */
  recordProgress(reported: readonly SessionProgress[], updatedAt: string): Promise<void>;
  /** Locks sessions whose lease has expired, and skips those that another transaction has locked. */
  lockExpired(nowMs: number, limit: number): Promise<SessionRow[]>;
  /** Locks the sessions that are leased to a node. */
  lockHeldBy(nodeId: string): Promise<SessionRow[]>;
  /** The cancelled sessions of a node that has not been notified yet. */
  cancelPending(nodeId: string): Promise<SessionRow[]>;
  /** The number of leased sessions of each node. */
  leasedByNode(): Promise<ReadonlyMap<string, number>>;
  /** The number of sessions that are leased to a node. */
  countHeldBy(nodeId: string): Promise<number>;
  countByStatus(): Promise<ReadonlyMap<SessionStatus, number>>;
  /** The load of every trainer that has queued or leased sessions or uncollected results. */
  loads(): Promise<TrainerLoad[]>;
  /** The trainers that have a queued session which is due. */
  waitingTrainers(nowMs: number): Promise<string[]>;
}

/** At most `limit` rows whose index or cursor is greater than `after`. */
export type Page = { readonly after: number; readonly limit: number };

export interface ResultTable {
  /** Adds a result, and returns its cursor. Cursors become visible in ascending order, so a reader never misses a smaller one. */
  append(session: Pick<SessionRow, 'session_id' | 'task_id' | 'trainer'>, blobs: ResultBlobs): Promise<number>;
  /** The results after a cursor, oldest first; of all trainers when `trainer` is `null`. */
  page(after: number, limit: number, trainer: string | null): Promise<ResultWithSummary[]>;
  /** The results of a task, ordered by cursor; with `page`, at most `limit` results after a cursor. */
  ofTask(taskId: string, page?: Page): Promise<ResultWithSummary[]>;
  ofSession(sessionId: string): Promise<ResultWithSummary | undefined>;
  /** The greatest cursor of a stored result; 0 when there are none. */
  newestCursor(): Promise<number>;
  /** The greatest cursor that was ever assigned, or a greater number, even if its result was removed; 0 when there was none. */
  lastCursor(): Promise<number>;
  delivery(sessionId: string, epoch: number): Promise<DeliveryRow | undefined>;
  /** Adds the delivery of an epoch. Throws when there is one already, except that a partial result is replaced. */
  addDelivery(row: DeliveryRow): Promise<void>;
  /** Ordered by epoch. */
  deliveriesOf(sessionId: string): Promise<DeliveryRow[]>;
  /** Marks the results up to a cursor as collected; those of all trainers when `trainer` is `null`. */
  collect(trainer: string | null, upToCursor: number): Promise<void>;
  collectTask(taskId: string): Promise<void>;
  consumer(name: string): Promise<ConsumerRow | undefined>;
  /** Adds a consumer or advances its cursor, and returns the stored row. The cursor never decreases, and the trainer never changes. */
  putConsumer(row: ConsumerRow): Promise<ConsumerRow>;
  /** The given blobs to which a result or a delivery refers. */
  referenced(refs: readonly string[]): Promise<ReadonlySet<string>>;
}

export interface NodeTable {
  /** Adds the node, or replaces its row. */
  put(row: NodeRow): Promise<void>;
  get(nodeId: string): Promise<NodeRow | undefined>;
  /** Like `get`, and locks the row until the transaction ends. */
  lock(nodeId: string): Promise<NodeRow | undefined>;
  list(): Promise<NodeRow[]>;
  update(nodeId: string, patch: Partial<Omit<NodeRow, 'node_id'>>): Promise<void>;
  remove(nodeId: string): Promise<void>;
}

export interface CallbackTable {
  insert(row: CallbackRow): Promise<void>;
  /** Returns callbacks that are due, and reserves them: no server gets them before `untilMs`. */
  claimDue(nowMs: number, limit: number, untilMs: number): Promise<CallbackRow[]>;
  get(taskId: string): Promise<CallbackRow | undefined>;
  update(taskId: string, patch: Partial<Omit<CallbackRow, 'task_id'>>): Promise<void>;
  countUndelivered(): Promise<number>;
}

/** The task ids that were cancelled before they were submitted. */
export interface TombstoneTable {
  put(taskId: string, expiresMs: number): Promise<void>;
  has(taskId: string, nowMs: number): Promise<boolean>;
  removeExpired(nowMs: number): Promise<void>;
}

export interface EngineTable {
  /** Ordered by id. */
  list(): Promise<EngineRow[]>;
  put(row: EngineRow): Promise<void>;
  remove(engineId: string): Promise<void>;
  state(): Promise<EngineStateRow>;
  /** Like `state`, and locks all engines until the transaction ends. Every change of engines begins with this. */
  lock(): Promise<EngineStateRow>;
  /** Applies `patch`, raises the revision by one, and returns the changed row. */
  advance(patch: Partial<Omit<EngineStateRow, 'revision'>>): Promise<EngineStateRow>;
}

export interface ServiceTimeTable {
  /** The stored service time in milliseconds. */
  get(): Promise<number>;
  /** Stores `nowMs` unless the stored time is greater, and returns the greater one. */
  advance(nowMs: number): Promise<number>;
}

export interface DurationTable {
  /** The mean durations in milliseconds of those keys that are known. */
  means(keys: readonly string[]): Promise<ReadonlyMap<string, number>>;
  /** The mean over all keys in milliseconds; `null` when no duration is known. */
  overallMean(): Promise<number | null>;
  /** Adds one duration to the running mean of a key. */
  observe(key: string, ms: number): Promise<void>;
}
