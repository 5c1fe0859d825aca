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
 * Durable storage of rows in tables. A store makes transactions atomic, isolated and durable; the rules of the control plane are in
 * `rollout/`. Several servers may share one store in PostgreSQL.
 */
export interface Store {
  /**
   * Runs `work` in one transaction, and resolves to its result after the commit is on disk. When `work` throws, nothing is changed and
   * this throws the same error. When the store itself fails, this throws `store_unavailable`, and a retry may succeed. Nothing is changed
   * then, unless the connection broke during the commit.
   *
   * `work` must await nothing but calls of the given tables, and must change nothing but their rows, because it is run repeatedly when
   * another server's transaction conflicts. Independent calls may be made concurrently if all of them are awaited even after a failure
   * (`settleAll`); they take effect in the order in which they were made. Rows on which a decision depends must be read with a `lock`
   * method. Nodes are locked before tasks, tasks before their sessions, and rows of one table in the order of their ids, so that no two
   * transactions wait for each other.
   */
  transaction<T>(work: (tables: StoreTables) => Promise<T>): Promise<T>;
  /** Runs `work`, which must only read, on one consistent snapshot. */
  read<T>(work: (tables: StoreTables) => Promise<T>): Promise<T>;
  /**
   * Sends a message about committed changes to the other servers on this store. The message may be lost, so servers also poll for the
   * changes.
   */
  announce(message: string): void;
  /** Calls `listener` with each message of another server. Returns a function that ends the subscription. */
  listen(listener: (message: string) => void): () => void;
  /** Waits for the running transactions, then closes the store. Later transactions are refused with `not_ready`. */
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
  /**
   * Prevents other transactions from adding a task with this id or idempotency key until this transaction ends. To be called before a task
   * with either is read.
   */
  reserve(taskId: string | null, idempotencyKey: string | null): Promise<void>;
  /** Adds a task. Throws `conflict` when its id or its idempotency key is already in use. */
  insert(row: TaskRow): Promise<void>;
  get(taskId: string): Promise<TaskRow | undefined>;
  /** Returns a task as `get` does, and locks its row until the transaction ends. */
  lock(taskId: string): Promise<TaskRow | undefined>;
  getMany(taskIds: readonly string[]): Promise<TaskRow[]>;
  findByKey(idempotencyKey: string): Promise<TaskRow | undefined>;
  /** Returns at most `limit` tasks, newest first; with `status`, only those with that status. */
  list(filter: { status: TaskState | null; limit: number }): Promise<TaskRow[]>;
  update(taskId: string, patch: TaskPatch): Promise<void>;
  /** Adds to the counters of a task, and returns the changed row. */
  addEnded(taskId: string, added: EndedCounts): Promise<TaskRow>;
  /** Returns at most `limit` running tasks whose deadline has passed. */
  overdue(nowMs: number, limit: number): Promise<TaskRow[]>;
  /** Returns at most `limit` cancelled tasks with open sessions. */
  unfinishedCancelled(limit: number): Promise<TaskRow[]>;
  countByStatus(): Promise<ReadonlyMap<TaskState, number>>;
  /**
   * Removes up to `limit` tasks that ended before `endedBeforeMs` and whose results are collected, with all their rows. Returns the number
   * of removed tasks.
   */
  removeEnded(endedBeforeMs: number, limit: number): Promise<number>;
}

/**
 * The order of queued sessions with the same trainer and priority. `fifo` is first in, first out; `longest_first` puts those with the
 * greatest `expected_ms` first, and those with equal values in the order of submission.
 */
export type QueueOrder = 'fifo' | 'longest_first';

/**
 * The order in which one claim takes sessions. An `overdue` claim considers only the first `OVERDUE_CANDIDATES` sessions of the queue, and
 * takes, in the order of submission, those of the highest priority that have waited for more than `OVERDUE_FACTOR` times their expected
 * duration.
 */
export type ClaimOrder = QueueOrder | 'overdue';

/**
 * A session is overdue when it has waited for this many times its expected duration. Running it first then delays longer sessions by less
 * than it has been delayed itself.
 */
export const OVERDUE_FACTOR = 4;
/**
 * Number of sessions at the front of the queue that are checked for being overdue: enough for the claim of a large node, and few enough to
 * be cheap when the queue is long.
 */
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
  /** Returns a session as `get` does, and locks its row until the transaction ends. */
  lock(sessionId: string): Promise<SessionRow | undefined>;
  getMany(sessionIds: readonly string[]): Promise<SessionRow[]>;
  /** Returns sessions as `getMany` does but ordered by id, and locks their rows until the transaction ends. */
  lockMany(sessionIds: readonly string[]): Promise<SessionRow[]>;
  /** Returns the sessions of a task, ordered by sample index; with `page`, at most `limit` sessions after an index. */
  ofTask(taskId: string, page?: Page): Promise<SessionRow[]>;
  /**
   * Locks and returns up to `limit` open sessions of a task, leased ones first. Sessions that another transaction has locked are skipped,
   * because that transaction may be waiting for the lock on result cursors, which the caller may hold.
   */
  lockOpen(taskId: string, limit: number): Promise<SessionRow[]>;
  idsOfTask(taskId: string): Promise<string[]>;
  /** Returns the number of a task's unusable sessions for each reason. */
  unusable(taskId: string): Promise<ReadonlyMap<UnusableReason, number>>;
  /**
   * Leases queued sessions of one trainer to a node, and returns their rows: higher priority first, then in the requested order. Skips
   * sessions whose back-off is not over, that avoid the node, or that a concurrent claim has locked.
   */
  claim(request: ClaimRequest): Promise<SessionRow[]>;
  update(sessionId: string, patch: SessionPatch): Promise<void>;
  renew(sessionIds: readonly string[], leaseExpiresMs: number): Promise<void>;
  /**
   * Returns the ids of the reported sessions whose stored row differs from the report: another node, epoch or progress, or a lease that
   * expires before `freshUntilMs`.
   */
  differing(nodeId: string, reported: readonly SessionProgress[], freshUntilMs: number): Promise<string[]>;
  /** Stores the status, turns and tokens that a node reported for its sessions. */
  recordProgress(reported: readonly SessionProgress[], updatedAt: string): Promise<void>;
  /** Locks and returns sessions whose lease has expired. Skips those that another transaction has locked. */
  lockExpired(nowMs: number, limit: number): Promise<SessionRow[]>;
  /** Locks and returns the sessions that are leased to a node. */
  lockHeldBy(nodeId: string): Promise<SessionRow[]>;
  /** Returns the cancelled sessions of a node of which the node has not been notified yet. */
  cancelPending(nodeId: string): Promise<SessionRow[]>;
  /** Returns the number of leased sessions of each node. */
  leasedByNode(): Promise<ReadonlyMap<string, number>>;
  /** Returns the number of sessions that are leased to a node. */
  countHeldBy(nodeId: string): Promise<number>;
  countByStatus(): Promise<ReadonlyMap<SessionStatus, number>>;
  /** Returns the load of every trainer that has queued or leased sessions or uncollected results. */
  loads(): Promise<TrainerLoad[]>;
  /** Returns the trainers that have a queued session whose back-off is over. */
  waitingTrainers(nowMs: number): Promise<string[]>;
}

/** Selects at most `limit` rows whose index or cursor is greater than `after`. */
export type Page = { readonly after: number; readonly limit: number };

export interface ResultTable {
  /**
   * Adds a result, and returns its cursor. Cursors become visible in ascending order, so a reader that has seen one never misses a smaller
   * one.
   */
  append(session: Pick<SessionRow, 'session_id' | 'task_id' | 'trainer'>, blobs: ResultBlobs): Promise<number>;
  /** Returns the results after a cursor, oldest first. `trainer` is `null` for the results of all trainers. */
  page(after: number, limit: number, trainer: string | null): Promise<ResultWithSummary[]>;
  /** Returns the results of a task, ordered by cursor; with `page`, at most `limit` results after a cursor. */
  ofTask(taskId: string, page?: Page): Promise<ResultWithSummary[]>;
  ofSession(sessionId: string): Promise<ResultWithSummary | undefined>;
  /** Returns the greatest cursor of a stored result; 0 when no result is stored. */
  newestCursor(): Promise<number>;
  /** Returns a number that no cursor assigned so far exceeds, even if its result was removed since; 0 when none was assigned. */
  lastCursor(): Promise<number>;
  delivery(sessionId: string, epoch: number): Promise<DeliveryRow | undefined>;
  /** Adds the delivery of an epoch. Throws when the epoch has one already, except that a partial result is replaced. */
  addDelivery(row: DeliveryRow): Promise<void>;
  /** Returns the deliveries of a session, ordered by epoch. */
  deliveriesOf(sessionId: string): Promise<DeliveryRow[]>;
  /** Marks the results up to a cursor as collected. `trainer` is `null` for the results of all trainers. */
  collect(trainer: string | null, upToCursor: number): Promise<void>;
  collectTask(taskId: string): Promise<void>;
  consumer(name: string): Promise<ConsumerRow | undefined>;
  /**
   * Adds a consumer or advances its cursor, and returns the stored row. The cursor of a consumer never decreases, and its trainer never
   * changes.
   */
  putConsumer(row: ConsumerRow): Promise<ConsumerRow>;
  /** Returns those of the given blobs to which a result or a delivery refers. */
  referenced(refs: readonly string[]): Promise<ReadonlySet<string>>;
}

export interface NodeTable {
  /** Adds a node, or replaces its row. */
  put(row: NodeRow): Promise<void>;
  get(nodeId: string): Promise<NodeRow | undefined>;
  /** Returns a node as `get` does, and locks its row until the transaction ends. */
  lock(nodeId: string): Promise<NodeRow | undefined>;
  list(): Promise<NodeRow[]>;
  update(nodeId: string, patch: Partial<Omit<NodeRow, 'node_id'>>): Promise<void>;
  remove(nodeId: string): Promise<void>;
}

export interface CallbackTable {
  insert(row: CallbackRow): Promise<void>;
  /** Returns callbacks whose next try is due, and claims them: no server gets them before `untilMs`. */
  claimDue(nowMs: number, limit: number, untilMs: number): Promise<CallbackRow[]>;
  get(taskId: string): Promise<CallbackRow | undefined>;
  update(taskId: string, patch: Partial<Omit<CallbackRow, 'task_id'>>): Promise<void>;
  countUndelivered(): Promise<number>;
}

/** Task ids that were cancelled before a task with that id was submitted. */
export interface TombstoneTable {
  put(taskId: string, expiresMs: number): Promise<void>;
  has(taskId: string, nowMs: number): Promise<boolean>;
  removeExpired(nowMs: number): Promise<void>;
}

export interface EngineTable {
  /** Returns all registered engines, ordered by id. */
  list(): Promise<EngineRow[]>;
  put(row: EngineRow): Promise<void>;
  remove(engineId: string): Promise<void>;
  state(): Promise<EngineStateRow>;
  /**
   * Returns the same row as `state`, and locks all engines until the transaction ends. Every change of engines must begin with this call.
   */
  lock(): Promise<EngineStateRow>;
  /** Applies `patch`, increases the revision by one, and returns the changed row. */
  advance(patch: Partial<Omit<EngineStateRow, 'revision'>>): Promise<EngineStateRow>;
}

export interface ServiceTimeTable {
  /** Returns the stored service time in milliseconds. */
  get(): Promise<number>;
  /** Stores `nowMs` unless the stored service time is greater, and returns the greater one. */
  advance(nowMs: number): Promise<number>;
}

export interface DurationTable {
  /** Returns the mean durations in milliseconds of those keys that have one. */
  means(keys: readonly string[]): Promise<ReadonlyMap<string, number>>;
  /** Returns the mean over all keys in milliseconds; `null` when no duration is stored. */
  overallMean(): Promise<number | null>;
  /** Adds one duration in milliseconds to the running mean of a key. */
  observe(key: string, ms: number): Promise<void>;
}
