import type { SessionProgress, SessionStatus, TaskState, UnusableReason } from '@floe-rl/core/schema';
import type { FactTable } from './facts.ts';
import type {
  AliasedTask,
  AliasRow,
  BatchCounts,
  BatchDataRow,
  BatchDataRowPatch,
  BatchGroupPatch,
  BatchGroupRow,
  BatchGroupState,
  BatchGroupTotals,
  BatchRowTotals,
  BatchStreamPatch,
  BatchStreamRow,
  CallbackRow,
  ConsumerRow,
  DeliveryRow,
  EndedCounts,
  EngineRow,
  EngineStateRow,
  HandedGroupRow,
  NewSession,
  NodeRow,
  OpenState,
  QueuedSessions,
  ResultBlobs,
  ResultWithSummary,
  SessionPatch,
  SessionRow,
  TaskPatch,
  TaskRow,
  TrainerLoad,
} from './rows.ts';

/**
 * Durable storage of rows in tables. A store makes transactions atomic, isolated and durable; it contains no scheduling rules, which are in
 * `rollout/`. Several servers may share one store in PostgreSQL.
 */
export interface Store {
  /**
   * Runs `work` in one transaction, and resolves to its result after the commit is on disk. When `work` throws, nothing is changed and
   * `transaction` throws the same error. When the store itself fails, `transaction` throws `store_unavailable`, and a retry may succeed.
   * Nothing is changed then, unless the connection broke during the commit.
   *
   * `work` must await nothing but calls of the given tables, and must change nothing but their rows, because it is run repeatedly when
   * the transaction of another server conflicts. Independent calls may be made concurrently if all of them are awaited even after a
   * failure (`settleAll`); they take effect in the order in which they were made. Rows on which a decision depends must be read with a
   * `lock` method. To avoid deadlocks, nodes are locked before tasks, tasks before their sessions, and rows of one table in the order of
   * their ids.
   */
  transaction<T>(work: (tables: StoreTables) => Promise<T>): Promise<T>;
  /** Runs `work` on one consistent snapshot of the database. `work` must only read. */
  read<T>(work: (tables: StoreTables) => Promise<T>): Promise<T>;
  /**
   * Sends a message about committed changes to all other servers that share this store. The message may be lost, so servers also poll for
   * changes.
   */
  announce(message: string): void;
  /** Calls `listener` with each message that another server announces. Returns a function that ends the subscription. */
  listen(listener: (message: string) => void): () => void;
  /** Waits for the running transactions, then closes the store. Transactions that start later are refused with `not_ready`. */
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
  readonly aliases: AliasTable;
  readonly batches: BatchTables;
  readonly facts: FactTable;
}

export interface TaskTable {
  /**
   * Prevents other transactions from adding a task with this id or idempotency key until this transaction ends. It must be called before
   * the transaction reads whether such a task exists.
   */
  reserve(taskId: string | null, idempotencyKey: string | null): Promise<void>;
  /** Adds a task. Throws `conflict` when its id or its idempotency key is already in use. */
  insert(row: TaskRow): Promise<void>;
  get(taskId: string): Promise<TaskRow | undefined>;
  /** Returns the task with this id and locks its row until the transaction ends. Resolves with `undefined` when there is no such task. */
  lock(taskId: string): Promise<TaskRow | undefined>;
  getMany(taskIds: readonly string[]): Promise<TaskRow[]>;
  findByKey(idempotencyKey: string): Promise<TaskRow | undefined>;
  /** Returns at most `limit` tasks, newest first. When `status` is not `null`, returns only tasks with this status. */
  list(filter: { status: TaskState | null; limit: number }): Promise<TaskRow[]>;
  update(taskId: string, patch: TaskPatch): Promise<void>;
  /** Adds `added` to the counters of a task, and returns the changed row. */
  addEnded(taskId: string, added: EndedCounts): Promise<TaskRow>;
  /** Returns at most `limit` running tasks whose deadline has passed. */
  overdue(nowMs: number, limit: number): Promise<TaskRow[]>;
  /** Returns at most `limit` cancelled tasks that still have open sessions. */
  unfinishedCancelled(limit: number): Promise<TaskRow[]>;
  countByStatus(): Promise<ReadonlyMap<TaskState, number>>;
  /** Replaces the changes that {@link countByStatus} sums by their sums, once there are at least `limit` of them. */
  foldCounts(limit: number): Promise<void>;
  /**
   * Removes tasks that ended before the service time `endedBeforeMs` and whose results are all collected, in the order in which they ended,
   * with the rows that belong to them. At most `limit` sessions are removed. Of a task with more sessions, only this many are removed, and the
   * task itself is removed with its last session. Resolves to the numbers of removed tasks and sessions; both are 0 when nothing is left to
   * remove.
   */
  removeEnded(endedBeforeMs: number, limit: number): Promise<Removed>;
}

export type Removed = { readonly tasks: number; readonly sessions: number };

/**
 * The order of queued sessions with the same trainer and priority. `fifo` is first in, first out. `longest_first` sorts by `expected_ms`,
 * greatest first, and sessions with equal values by submission.
 */
export type QueueOrder = 'fifo' | 'longest_first';

/**
 * The order in which one claim takes sessions from the queue. The order `overdue` checks only the first `OVERDUE_CANDIDATES` sessions. Of
 * these it takes, in the order of submission, the sessions of the highest priority that have waited for more than `OVERDUE_FACTOR` times
 * their expected duration.
 */
export type ClaimOrder = QueueOrder | 'overdue';

/**
 * A session is overdue when it has waited for more than this many times its expected duration. When an overdue session runs before longer
 * sessions, it delays them by its own duration only, which is less than the time that it has waited.
 */
export const OVERDUE_FACTOR = 4;
/**
 * Number of sessions at the front of the queue that are checked for being overdue. A node rarely claims more at
 * once, and the check stays cheap when the queue is long.
 */
export const OVERDUE_CANDIDATES = 64;

/** The memory of a node in MiB. `totalMb` is all of it, and `freeMb` is the part that the sessions leased to the node do not need. */
export type NodeMemory = { readonly totalMb: number; readonly freeMb: number };

/** Returns as many of the first sessions as fit into the free memory together. Stops at the first session that does not fit. */
export function firstFitting<Row extends Pick<SessionRow, 'memory_mb'>>(rows: readonly Row[], freeMb: number): Row[] {
  let left = freeMb;
  const end = rows.findIndex(({ memory_mb: needed }) => {
    left -= needed;
    return left < 0;
  });
  return rows.slice(0, end === -1 ? rows.length : end);
}

/** The number of sessions that are leased to a node, and the sum of their memory limits in MiB. */
export type HeldSessions = { readonly count: number; readonly memoryMb: number };

export type ClaimRequest = {
  readonly limit: number;
  readonly nodeId: string;
  readonly trainer: string;
  readonly order: ClaimOrder;
  readonly nowMs: number;
  readonly leaseExpiresMs: number;
  readonly updatedAt: string;
  /** The memory of the node, which the claimed sessions must fit into. Default: no limit. */
  readonly memory?: NodeMemory | null;
};

/** The fields that sessions that are inserted together have in common. */
export type NewSessions = Pick<
  SessionRow,
  | 'task_id'
  | 'trainer'
  | 'priority'
  | 'max_attempts'
  | 'not_before_ms'
  | 'queued_since_ms'
  | 'expected_ms'
  | 'memory_mb'
  | 'created_at'
>;

export interface SessionTable {
  /** Adds queued sessions. They get their places in the queue in the given order. */
  insert(shared: NewSessions, sessions: readonly NewSession[]): Promise<void>;
  get(sessionId: string): Promise<SessionRow | undefined>;
  /**
   * Returns the session with this id and locks its row until the transaction ends. Resolves with `undefined` when there is no such session.
   */
  lock(sessionId: string): Promise<SessionRow | undefined>;
  getMany(sessionIds: readonly string[]): Promise<SessionRow[]>;
  /** Returns the sessions with these ids, ordered by id, and locks their rows until the transaction ends. */
  lockMany(sessionIds: readonly string[]): Promise<SessionRow[]>;
  /**
   * Returns the sessions of a task, ordered by sample index. With `page`, returns at most `page.limit` sessions with an index above
   * `page.after`.
   */
  ofTask(taskId: string, page?: Page): Promise<SessionRow[]>;
  /**
   * Locks and returns up to `limit` open sessions of a task, leased ones first. Sessions that another transaction has locked are skipped,
   * because waiting for them could cause a deadlock. The caller may hold the lock on result cursors, and the other transaction may wait for
   * that lock.
   */
  lockOpen(taskId: string, limit: number): Promise<SessionRow[]>;
  idsOfTask(taskId: string): Promise<string[]>;
  /** Counts a task's unusable sessions by the reason why they are unusable. */
  unusable(taskId: string): Promise<ReadonlyMap<UnusableReason, number>>;
  /**
   * Leases queued sessions of one trainer to a node, and returns their rows: higher priorities first, and within a priority in the
   * requested order. Skips sessions that are in back-off, that avoid this node, that need more than all memory of the node, or that a
   * concurrent claim has locked. Stops at the first session that does not fit into the free memory, so that smaller sessions after it
   * cannot delay it indefinitely.
   */
  claim(request: ClaimRequest): Promise<SessionRow[]>;
  /** Whether {@link claim} would return a session if the node held no other session. */
  hasDue(request: ClaimRequest): Promise<boolean>;
  update(sessionId: string, patch: SessionPatch): Promise<void>;
  renew(sessionIds: readonly string[], leaseExpiresMs: number): Promise<void>;
  /**
   * Compares the sessions that a node reported with their stored rows. Returns the ids of sessions with another node, epoch or progress, or
   * with a lease that expires before `freshUntilMs`.
   */
  differing(nodeId: string, reported: readonly SessionProgress[], freshUntilMs: number): Promise<string[]>;
  /** Stores the status, turns and tokens that a node reported for its sessions. */
  recordProgress(reported: readonly SessionProgress[], updatedAt: string): Promise<void>;
  /** Locks and returns sessions with an expired lease. Skips sessions that another transaction has locked. */
  lockExpired(nowMs: number, limit: number): Promise<SessionRow[]>;
  /** Locks and returns the sessions that are leased to a node. */
  lockHeldBy(nodeId: string): Promise<SessionRow[]>;
  /** Returns the cancelled sessions of a node that has not been notified of their cancellation yet. */
  cancelPending(nodeId: string): Promise<SessionRow[]>;
  /** Returns at most `limit` leased sessions, in the order in which they were submitted. With `taskId`, returns only sessions of this task. */
  leased(taskId: string | null, limit: number): Promise<SessionRow[]>;
  /** Returns the leased sessions of each node that has some. */
  leasedByNode(): Promise<ReadonlyMap<string, HeldSessions>>;
  heldBy(nodeId: string): Promise<HeldSessions>;
  /** Counts the queued sessions by trainer and memory limit. Takes time in proportion to the length of the queue. */
  queued(): Promise<QueuedSessions[]>;
  /** Counts the sessions that are not queued by status. Ended sessions are counted by the outcomes in their facts. */
  countStarted(): Promise<ReadonlyMap<SessionStatus, number>>;
  /** Returns the load of every trainer that has leased sessions or uncollected results. */
  loads(): Promise<TrainerLoad[]>;
  /** Returns the names of the trainers that have a queued session which is not in back-off. */
  waitingTrainers(nowMs: number): Promise<string[]>;
}

/** Selects at most `limit` rows with an index or cursor greater than `after`. */
export type Page = { readonly after: number; readonly limit: number };

export interface ResultTable {
  /**
   * Adds a result, and returns its cursor. Cursors become visible to readers in ascending order: once a reader has seen a cursor, no
   * smaller one is added.
   */
  append(session: Pick<SessionRow, 'session_id' | 'task_id' | 'trainer'>, blobs: ResultBlobs): Promise<number>;
  /**
   * Returns at most `limit` results with a cursor above `after`, oldest first. `trainer` selects the results of one trainer; `null` selects
   * all.
   */
  page(after: number, limit: number, trainer: string | null): Promise<ResultWithSummary[]>;
  /**
   * Returns the results of a task, ordered by cursor. With `page`, returns at most `page.limit` results with a cursor above `page.after`.
   */
  ofTask(taskId: string, page?: Page): Promise<ResultWithSummary[]>;
  /** Returns the results of several tasks, ordered by cursor. */
  ofTasks(taskIds: readonly string[]): Promise<ResultWithSummary[]>;
  ofSession(sessionId: string): Promise<ResultWithSummary | undefined>;
  /** Returns the greatest cursor of a stored result; 0 when no result is stored. */
  newestCursor(): Promise<number>;
  /**
   * Returns the greatest cursor that was ever assigned, or in PostgreSQL possibly a greater number. This includes cursors of results that
   * were removed since. Returns 0 when no cursor was assigned.
   */
  lastCursor(): Promise<number>;
  delivery(sessionId: string, epoch: number): Promise<DeliveryRow | undefined>;
  /**
   * Adds a node's delivery for an epoch of a session. Replaces a partial result of the same epoch. Throws when the epoch already has any
   * other delivery.
   */
  addDelivery(row: DeliveryRow): Promise<void>;
  /** Returns the deliveries of a session, ordered by epoch. */
  deliveriesOf(sessionId: string): Promise<DeliveryRow[]>;
  /** Marks results up to the given cursor as collected: the results of one trainer, or all results when `trainer` is `null`. */
  collect(trainer: string | null, upToCursor: number): Promise<void>;
  /** Marks the results of the groups of a stream's batches with numbers above `after`, up to `upTo`, as collected. */
  collectBatches(batchId: string, after: number, upTo: number): Promise<void>;
  /** Marks the results of these tasks as collected. */
  collectTasks(taskIds: readonly string[]): Promise<void>;
  consumer(name: string): Promise<ConsumerRow | undefined>;
  /**
   * Adds a consumer or advances its cursor, and returns the stored row. A consumer's cursor never decreases, and its trainer never changes.
   */
  putConsumer(row: ConsumerRow): Promise<ConsumerRow>;
  /** Returns the given blob names that are in use, that is, to which a result or a delivery refers. */
  referenced(refs: readonly string[]): Promise<ReadonlySet<string>>;
}

export interface NodeTable {
  /** Adds a node, or replaces the row of a node with the same id, whose engines then have no state. */
  put(row: NodeRow): Promise<void>;
  get(nodeId: string): Promise<NodeRow | undefined>;
  /** Returns the node with this id and locks its row until the transaction ends. Resolves with `undefined` when there is no such node. */
  lock(nodeId: string): Promise<NodeRow | undefined>;
  list(): Promise<NodeRow[]>;
  /** Returns the nodes that are being drained. */
  draining(): Promise<NodeRow[]>;
  /**
   * Whether a node other than `nodeId` accepts sessions: it is not being drained, does not refuse sessions, and was last seen at the service
   * time `seenSinceMs` or later.
   */
  hasOther(nodeId: string, seenSinceMs: number): Promise<boolean>;
  update(nodeId: string, patch: Partial<Omit<NodeRow, 'node_id'>>): Promise<void>;
  remove(nodeId: string): Promise<void>;
  /**
   * Stores the state of a node's engines as JSON text, which is long when a node has hundreds of engines. It is not part of the node's row,
   * because every call of the node reads that row.
   */
  putEngineInfo(nodeId: string, info: string): Promise<void>;
  /** Returns the state of the engines as JSON text by node id, for every node that has stored it. */
  engineInfo(): Promise<ReadonlyMap<string, string>>;
}

export interface CallbackTable {
  insert(row: CallbackRow): Promise<void>;
  /**
   * Returns at most `limit` callbacks that are due for their next try, and reserves them: until the service time `untilMs`, no server gets
   * them from this method.
   */
  claimDue(nowMs: number, limit: number, untilMs: number): Promise<CallbackRow[]>;
  get(taskId: string): Promise<CallbackRow | undefined>;
  update(taskId: string, patch: Partial<Omit<CallbackRow, 'task_id'>>): Promise<void>;
  countUndelivered(): Promise<number>;
}

/** Ids of tasks that were cancelled before they were submitted. A later submission of such an id is refused. */
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
   * Returns the settings that `state` returns, and locks all engines until the transaction ends. Every change of engines must begin with
   * this call.
   */
  lock(): Promise<EngineStateRow>;
  /** Changes the settings for all engines as `patch` states, increases their revision by one, and returns the changed row. */
  advance(patch: Partial<Omit<EngineStateRow, 'revision'>>): Promise<EngineStateRow>;
}

export interface ServiceTimeTable {
  /** Returns the stored service time in milliseconds. */
  get(): Promise<number>;
  /** Stores the service time `nowMs` unless the stored one is greater. Returns the greater of the two. */
  advance(nowMs: number): Promise<number>;
}

export interface DurationTable {
  /** Returns the mean session duration in milliseconds by duration key. A key without stored durations is left out. */
  means(keys: readonly string[]): Promise<ReadonlyMap<string, number>>;
  /** Returns the mean session duration over all duration keys in milliseconds; `null` when no duration is stored. */
  overallMean(): Promise<number | null>;
  /** Adds one session duration in milliseconds to the running mean of a duration key. */
  observe(key: string, ms: number): Promise<void>;
}

/** The ids under which clients of other systems' APIs submitted tasks. The alias of a task is removed together with the task. */
export interface AliasTable {
  /** Adds an alias, or makes it name another task. */
  put(row: AliasRow): Promise<void>;
  get(api: AliasRow['api'], alias: string): Promise<AliasRow | undefined>;
  /** Returns the alias that names this task. Resolves with `undefined` when none does. */
  ofTask(taskId: string): Promise<AliasRow | undefined>;
  /** Returns at most `limit` tasks that have an alias in this API, newest first. */
  list(api: AliasRow['api'], limit: number): Promise<AliasedTask[]>;
}

/** The streams that hand batches of groups to trainers, with their rows and groups. A stream is locked before tasks. */
export interface BatchTables {
  /** Adds a stream. Returns whether it was added; `false` when a stream with this id exists. */
  addStream(row: BatchStreamRow): Promise<boolean>;
  stream(batchId: string): Promise<BatchStreamRow | undefined>;
  /** Returns the stream with this id and locks its row until the transaction ends. */
  lockStream(batchId: string): Promise<BatchStreamRow | undefined>;
  /** Returns at most `limit` streams, newest first. With `status`, returns only streams with this status. */
  streams(filter: { status: BatchStreamRow['status'] | null; limit: number }): Promise<BatchStreamRow[]>;
  updateStream(batchId: string, patch: BatchStreamPatch): Promise<void>;
  addRows(rows: readonly BatchDataRow[]): Promise<void>;
  row(batchId: string, rowIndex: number): Promise<BatchDataRow | undefined>;
  /** Returns the fields of the rows from index `from` to before `to`, ordered by index. */
  rowFields(batchId: string, from: number, to: number): Promise<string[]>;
  updateRow(batchId: string, rowIndex: number, patch: BatchDataRowPatch): Promise<void>;
  /** Returns the rows that are neither invalid nor retired, without their fields, ordered by index. */
  histories(batchId: string): Promise<Omit<BatchDataRow, 'fields'>[]>;
  /** Returns at most `limit` rows that do not fit the template, without their fields, ordered by index. */
  invalidRows(batchId: string, limit: number): Promise<Omit<BatchDataRow, 'fields'>[]>;
  /** Counts the rows that are not sampled. The cost depends only on the number of these rows, not on the number of all rows. */
  countUnsampledRows(batchId: string): Promise<BatchRowTotals>;
  /** Returns the planned row indexes of an epoch as JSON text; `undefined` when it has no plan. */
  plan(batchId: string, epoch: number): Promise<string | undefined>;
  /** Stores the plan of an epoch, and removes the plans of earlier epochs. */
  putPlan(batchId: string, epoch: number, rows: string): Promise<void>;
  addGroup(row: BatchGroupRow): Promise<void>;
  groupOfTask(taskId: string): Promise<BatchGroupRow | undefined>;
  updateGroup(batchId: string, groupNo: number, patch: BatchGroupPatch): Promise<void>;
  /** Changes the groups of these tasks. */
  updateGroups(taskIds: readonly string[], patch: BatchGroupPatch): Promise<void>;
  /**
   * Puts the groups of some tasks into a batch, and returns the batch as {@link groupsOfBatch} does. `staleness` has the value of that column
   * by task id. Folds the changes of groups, as {@link foldChanges} does, so the caller holds the stream's lock.
   */
  handOut(batchId: string, batchNo: number, staleness: ReadonlyMap<string, string>): Promise<readonly HandedGroupRow[]>;
  /** Returns the open groups of a stream, read in one statement, because another server may end a group between two, and its rows. */
  openState(batchId: string): Promise<OpenState>;
  /** Returns the groups of a batch, ordered by number. */
  groupsOfBatch(batchId: string, batchNo: number): Promise<HandedGroupRow[]>;
  /** Returns at most `limit` groups in a state, ordered by number. */
  groups(batchId: string, state: BatchGroupState, limit: number): Promise<BatchGroupRow[]>;
  /** Returns the groups of the batches with numbers above `after`, up to `upTo`, ordered by batch and number. */
  groupsOfBatches(batchId: string, after: number, upTo: number): Promise<BatchGroupRow[]>;
  /** Returns the group with the lowest number whose row must be started once more. */
  groupToRepeat(batchId: string): Promise<BatchGroupRow | undefined>;
  /** Returns the number of groups in a state and the number of their resolved samples. Meant for states that few groups have at once. */
  sizeOf(batchId: string, state: BatchGroupState): Promise<{ readonly groups: number; readonly resolved: number }>;
  /**
   * Sums all groups of a stream by state and reason. It reads the changes of groups since {@link foldChanges} and the sums before them, so
   * its cost does not depend on the number of groups.
   */
  countGroups(batchId: string): Promise<BatchGroupTotals[]>;
  /**
   * Replaces the changes that {@link countGroups} reads by their sums. Resolves to the number of changes and sums that it read. The caller
   * holds the stream's lock.
   */
  foldChanges(batchId: string): Promise<number>;
  /**
   * Counts the rejected groups, by reason, that were started after the newest accepted group. Counts only the newest `limit` of them. The cost
   * does not depend on the number of all groups.
   */
  newestRejections(batchId: string, limit: number): Promise<ReadonlyMap<string, number>>;
  /** Returns the results of {@link countGroups}, {@link countUnsampledRows} and {@link newestRejections}. */
  counts(batchId: string, maxRejections: number): Promise<BatchCounts>;
  /** Returns the number of queued sessions of a stream's running groups. */
  queuedSessions(batchId: string): Promise<number>;
  /**
   * Removes up to `limit` streams that ended before the service time `endedBeforeMs`, with their rows and groups. Returns the number of
   * removed streams.
   */
  removeEnded(endedBeforeMs: number, limit: number): Promise<number>;
}
