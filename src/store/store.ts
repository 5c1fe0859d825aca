import type { SessionStatus, TaskState } from '../schema/index.ts';
import type {
  CallbackRow,
  DeliveryRow,
  EngineRow,
  EngineStateRow,
  NewSession,
  NodeRow,
  ResultBlobs,
  ResultWithSummary,
  SessionPatch,
  SessionRow,
  TaskRow,
} from './rows.ts';

/**
 * Durable rows. The rules of the control plane live in `rollout/`; a store only keeps rows and makes transactions atomic,
 * isolated and durable.
 */
export interface Store {
  /**
   * Runs `work` in one transaction and resolves after it is on disk. When `work` throws, nothing of it stays and the
   * error is passed on. When the store itself fails: `store_unavailable`, nothing stays, and repeating may help.
   * `work` must await nothing but the tables it is given; it may be called once only.
   */
  transaction<T>(work: (tables: StoreTables) => Promise<T>): Promise<T>;
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
}

export interface TaskTable {
  /** Throws `conflict` when the id or the idempotency key is taken. */
  insert(row: TaskRow): Promise<void>;
  get(taskId: string): Promise<TaskRow | undefined>;
  findByKey(idempotencyKey: string): Promise<TaskRow | undefined>;
  /** Newest first. */
  list(filter: { status: TaskState | null; limit: number }): Promise<TaskRow[]>;
  setStatus(taskId: string, status: TaskState): Promise<void>;
  /** Adds to the counters and returns the row as it is then. */
  addCompleted(taskId: string, added: { sessions: number; rewardSum: number; rewardCount: number }): Promise<TaskRow>;
  countByStatus(): Promise<ReadonlyMap<TaskState, number>>;
}

export type ClaimRequest = {
  readonly limit: number;
  readonly nodeId: string;
  readonly nowMs: number;
  readonly leaseExpiresMs: number;
  readonly updatedAt: string;
};

export interface SessionTable {
  /** Adds queued sessions in the order given. */
  insert(
    shared: Pick<
      SessionRow,
      'task_id' | 'priority' | 'max_attempts' | 'not_before_ms' | 'queued_since_ms' | 'created_at'
    >,
    sessions: readonly NewSession[],
  ): Promise<void>;
  get(sessionId: string): Promise<SessionRow | undefined>;
  getMany(sessionIds: readonly string[]): Promise<SessionRow[]>;
  /** By sample index. */
  ofTask(taskId: string): Promise<SessionRow[]>;
  idsOfTask(taskId: string): Promise<string[]>;
  /** Moves queued sessions that are due to LEASED: higher priority first, then first in, first out. */
  claim(request: ClaimRequest): Promise<SessionRow[]>;
  update(sessionId: string, patch: SessionPatch): Promise<void>;
  renew(sessionIds: readonly string[], leaseExpiresMs: number): Promise<void>;
  expired(nowMs: number, limit: number): Promise<SessionRow[]>;
  /** Cancelled sessions that their node may still be running. */
  cancelPending(nodeId: string): Promise<SessionRow[]>;
  leasedByNode(): Promise<ReadonlyMap<string, number>>;
  countByStatus(): Promise<ReadonlyMap<SessionStatus, number>>;
}

export interface ResultTable {
  /** Assigns the next cursor. Cursors only grow, and a reader that has seen one has seen all before it. */
  append(sessionId: string, taskId: string, blobs: ResultBlobs): Promise<number>;
  /** Results after a cursor, oldest first. */
  page(after: number, limit: number): Promise<ResultWithSummary[]>;
  ofTask(taskId: string): Promise<ResultWithSummary[]>;
  ofSession(sessionId: string): Promise<ResultWithSummary | undefined>;
  /** 0 when there are none. */
  newestCursor(): Promise<number>;
  delivery(sessionId: string, epoch: number): Promise<DeliveryRow | undefined>;
  addDelivery(row: DeliveryRow): Promise<void>;
}

export interface NodeTable {
  /** Adds the node, or replaces its registration and lets it take work again. */
  put(row: NodeRow): Promise<void>;
  get(nodeId: string): Promise<NodeRow | undefined>;
  list(): Promise<NodeRow[]>;
  update(nodeId: string, patch: Partial<Omit<NodeRow, 'node_id'>>): Promise<void>;
  remove(nodeId: string): Promise<void>;
}

export interface CallbackTable {
  insert(row: CallbackRow): Promise<void>;
  due(nowMs: number, limit: number): Promise<CallbackRow[]>;
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
  /** Changes what is named, raises the revision by one, and returns the row as it is then. */
  advance(patch: Partial<Omit<EngineStateRow, 'revision'>>): Promise<EngineStateRow>;
}

export interface ServiceTimeTable {
  /** Keeps the larger of what is stored and `nowMs`, and returns it. */
  advance(nowMs: number): Promise<number>;
}
