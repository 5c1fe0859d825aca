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
 * Durable rows. The rules of the control plane live in `rollout/`; a store only keeps rows and makes transactions atomic,
 * isolated and durable. Several servers may use one store at a time where it allows that.
 */
export interface Store {
  /**
   * Runs `work` in one transaction and resolves after it is on disk. When `work` throws, nothing of it stays and the
   * error is passed on. When the store itself fails: `store_unavailable`, nothing stays, and repeating may help.
   * `work` must await nothing but the tables it is given. It may be called again when another server got in its way, so
   * it must change nothing but the tables. What does not depend on each other may be asked for side by side, when all of it is
   * waited for even after a failure (`settleAll`); it takes place in the order of asking. Rows that it decides by are read with `lock`; tasks are locked before
   * their sessions, and both by id, so that no two transactions wait for each other.
   */
  transaction<T>(work: (tables: StoreTables) => Promise<T>): Promise<T>;
  /** Runs `work`, which only reads, on one consistent state. */
  read<T>(work: (tables: StoreTables) => Promise<T>): Promise<T>;
  /** Tells the other servers on this store, soon and at best once. What is lost they find by looking again. */
  announce(message: string): void;
  /** Calls `listener` with what other servers announce; returns the end of that. */
  listen(listener: (message: string) => void): () => void;
  /** Waits for running transactions. Later ones are refused with `not_ready`. */
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
  /** Until the transaction ends, nobody else adds a task of this id or idempotency key. To be asked before either is looked for. */
  reserve(taskId: string | null, idempotencyKey: string | null): Promise<void>;
  /** Throws `conflict` when the id or the idempotency key is taken. */
  insert(row: TaskRow): Promise<void>;
  get(taskId: string): Promise<TaskRow | undefined>;
  /** As `get`; nobody else changes the row until the transaction ends. */
  lock(taskId: string): Promise<TaskRow | undefined>;
  getMany(taskIds: readonly string[]): Promise<TaskRow[]>;
  findByKey(idempotencyKey: string): Promise<TaskRow | undefined>;
  /** Newest first. */
  list(filter: { status: TaskState | null; limit: number }): Promise<TaskRow[]>;
  update(taskId: string, patch: TaskPatch): Promise<void>;
  /** Adds to the counters and returns the row as it is then. */
  addEnded(taskId: string, added: EndedCounts): Promise<TaskRow>;
  /** Tasks still running whose deadline has passed. */
  overdue(nowMs: number, limit: number): Promise<TaskRow[]>;
  /** Cancelled tasks with sessions that have not ended. */
  unfinishedCancelled(limit: number): Promise<TaskRow[]>;
  countByStatus(): Promise<ReadonlyMap<TaskState, number>>;
  /** Removes up to `limit` tasks that ended before `endedBeforeMs` and whose results are collected, with all that belongs to them. */
  removeEnded(endedBeforeMs: number, limit: number): Promise<number>;
}

/** The order within a trainer and priority. `longest_first`: by `expected_ms`, then first in, first out. */
export type QueueOrder = 'fifo' | 'longest_first';

/**
 * `overdue`: of the sessions at the front of the line, by priority and then first in, first out, those of the front's
 * priority that have waited for more than `OVERDUE_FACTOR` times as long as they are expected to run.
 */
export type ClaimOrder = QueueOrder | 'overdue';

/** After this many times its own duration, waiting has cost a session more than going first costs the longer ones. */
export const OVERDUE_FACTOR = 4;
/** So many at the front of the line are looked at: enough for the claim of a large node, and cheap with a long queue. */
export const OVERDUE_LOOK = 64;

export type ClaimRequest = {
  readonly limit: number;
  readonly nodeId: string;
  readonly trainer: string;
  readonly order: ClaimOrder;
  readonly nowMs: number;
  readonly leaseExpiresMs: number;
  readonly updatedAt: string;
};

/** What the sessions of one insert have in common. */
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
  /** Adds queued sessions in the order given. */
  insert(shared: NewSessions, sessions: readonly NewSession[]): Promise<void>;
  get(sessionId: string): Promise<SessionRow | undefined>;
  /** As `get`; nobody else changes the row until the transaction ends. */
  lock(sessionId: string): Promise<SessionRow | undefined>;
  getMany(sessionIds: readonly string[]): Promise<SessionRow[]>;
  /** As `getMany`, by id, and nobody else changes the rows until the transaction ends. */
  lockMany(sessionIds: readonly string[]): Promise<SessionRow[]>;
  /** By sample index; with `page`, at most `limit` of those after an index. */
  ofTask(taskId: string, page?: Page): Promise<SessionRow[]>;
  /**
   * Locks up to `limit` sessions of a task that have not ended, leased ones first. Those that another transaction holds are left
   * out: whoever asks may hold the lock on result cursors, for which that one may wait.
   */
  lockOpen(taskId: string, limit: number): Promise<SessionRow[]>;
  idsOfTask(taskId: string): Promise<string[]>;
  /** How many of a task's sessions ended without use, by reason. */
  unusable(taskId: string): Promise<ReadonlyMap<UnusableReason, number>>;
  /**
   * Moves queued sessions of one trainer that are due, and that do not avoid the node, to LEASED: higher priority first, then in the
   * order asked for. Sessions that another claim is taking at this moment are left to it.
   */
  claim(request: ClaimRequest): Promise<SessionRow[]>;
  update(sessionId: string, patch: SessionPatch): Promise<void>;
  renew(sessionIds: readonly string[], leaseExpiresMs: number): Promise<void>;
  /**
   * Of the sessions that a node reports, the ids of those that are not stored as it says: not its own in that epoch, further or
   * less far, or with a lease that ends before `freshUntilMs`.
   */
  differing(nodeId: string, reported: readonly SessionProgress[], freshUntilMs: number): Promise<string[]>;
  /** Writes how far sessions are. */
  recordProgress(reported: readonly SessionProgress[], updatedAt: string): Promise<void>;
  /** Locks sessions whose lease ran out; those that another server is dealing with are left to it. */
  lockExpired(nowMs: number, limit: number): Promise<SessionRow[]>;
  /** Locks the sessions that a node holds. */
  lockHeldBy(nodeId: string): Promise<SessionRow[]>;
  /** Cancelled sessions that their node may still be running. */
  cancelPending(nodeId: string): Promise<SessionRow[]>;
  leasedByNode(): Promise<ReadonlyMap<string, number>>;
  /** How many sessions a node holds. */
  countHeldBy(nodeId: string): Promise<number>;
  countByStatus(): Promise<ReadonlyMap<SessionStatus, number>>;
  /** Trainers with anything queued, leased or uncollected. */
  loads(): Promise<TrainerLoad[]>;
  /** Trainers with a session that is queued and due. */
  waitingTrainers(nowMs: number): Promise<string[]>;
}

export type Page = { readonly after: number; readonly limit: number };

export interface ResultTable {
  /** Assigns the next cursor. Cursors only grow, and a reader that has seen one has seen all before it. */
  append(session: Pick<SessionRow, 'session_id' | 'task_id' | 'trainer'>, blobs: ResultBlobs): Promise<number>;
  /** Results after a cursor, oldest first; of one trainer, or of all. */
  page(after: number, limit: number, trainer: string | null): Promise<ResultWithSummary[]>;
  /** By cursor; with `page`, at most `limit` of those after a cursor. */
  ofTask(taskId: string, page?: Page): Promise<ResultWithSummary[]>;
  ofSession(sessionId: string): Promise<ResultWithSummary | undefined>;
  /** 0 when there are none. */
  newestCursor(): Promise<number>;
  /** The last cursor that was ever given out, or a later one, whether its result is still kept or not; 0: none was. */
  lastCursor(): Promise<number>;
  delivery(sessionId: string, epoch: number): Promise<DeliveryRow | undefined>;
  /** The first of an epoch is kept, unless it was the partial remains of an attempt that turned out to be alive. */
  addDelivery(row: DeliveryRow): Promise<void>;
  /** By epoch. */
  deliveriesOf(sessionId: string): Promise<DeliveryRow[]>;
  /** The trainer has the results up to a cursor; `trainer` null: those of all trainers. */
  collect(trainer: string | null, upToCursor: number): Promise<void>;
  collectTask(taskId: string): Promise<void>;
  consumer(name: string): Promise<ConsumerRow | undefined>;
  /** Adds the reader, or moves it on, and returns it as it is then: its cursor never goes back, and its trainer stays. */
  putConsumer(row: ConsumerRow): Promise<ConsumerRow>;
  /** Of these blobs, those that a result or delivery still names. */
  referenced(refs: readonly string[]): Promise<ReadonlySet<string>>;
}

export interface NodeTable {
  /** Adds the node, or replaces its registration and lets it take work again. */
  put(row: NodeRow): Promise<void>;
  get(nodeId: string): Promise<NodeRow | undefined>;
  /** As `get`; nobody else changes the row until the transaction ends. Nodes are locked before tasks. */
  lock(nodeId: string): Promise<NodeRow | undefined>;
  list(): Promise<NodeRow[]>;
  update(nodeId: string, patch: Partial<Omit<NodeRow, 'node_id'>>): Promise<void>;
  remove(nodeId: string): Promise<void>;
}

export interface CallbackTable {
  insert(row: CallbackRow): Promise<void>;
  /** Callbacks that are due; no other server gets them before `untilMs`. */
  claimDue(nowMs: number, limit: number, untilMs: number): Promise<CallbackRow[]>;
  get(taskId: string): Promise<CallbackRow | undefined>;
  update(taskId: string, patch: Partial<Omit<CallbackRow, 'task_id'>>): Promise<void>;
  countUndelivered(): Promise<number>;
}

/** Task ids that were cancelled before they were submitted. */
export interface TombstoneTable {
  put(taskId: string, expiresMs: number): Promise<void>;
  has(taskId: string, nowMs: number): Promise<boolean>;
  removeExpired(nowMs: number): Promise<void>;
}

export interface EngineTable {
  /** By id. */
  list(): Promise<EngineRow[]>;
  put(row: EngineRow): Promise<void>;
  remove(engineId: string): Promise<void>;
  state(): Promise<EngineStateRow>;
  /** As `state`; nobody else changes engines until the transaction ends. Every change of them asks for it first. */
  lock(): Promise<EngineStateRow>;
  /** Changes what is named, raises the revision by one, and returns the row as it is then. */
  advance(patch: Partial<Omit<EngineStateRow, 'revision'>>): Promise<EngineStateRow>;
}

export interface ServiceTimeTable {
  /** What is stored. */
  get(): Promise<number>;
  /** Keeps the larger of what is stored and `nowMs`, and returns it. */
  advance(nowMs: number): Promise<number>;
}

export interface DurationTable {
  /** Of the keys that are known. */
  means(keys: readonly string[]): Promise<ReadonlyMap<string, number>>;
  /** Over all keys; null: none is known. */
  overallMean(): Promise<number | null>;
  /** Takes one more duration into the running mean. */
  observe(key: string, ms: number): Promise<void>;
}
