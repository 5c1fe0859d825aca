import type { FactRow, NewFactRow } from '#server/store/facts';
import type {
  AliasRow,
  BatchDataRow,
  BatchGroupRow,
  BatchStreamRow,
  CallbackRow,
  ConsumerRow,
  DeliveryRow,
  DurationRow,
  EngineRow,
  EngineStateRow,
  NodeRow,
  ResultRow,
  SessionRow,
  TaskRow,
} from '#server/store/rows';
import { GroupIndex, SortedIndex, type TableIndex } from './indexes.ts';

/** Facts with their measures. */
export type StoredFact = FactRow & Pick<NewFactRow, 'measures'> & { readonly words?: string };

/** The change of one table row. `before` is `undefined` when the row was added, and `after` is `undefined` when it was removed. */
export type RowChange = {
  readonly table: MemoryTable<unknown>;
  readonly key: string;
  readonly before: unknown;
  readonly after: unknown;
};

/** A database table in memory: rows by key. Row objects are never modified, so a change is undone by restoring the previous row object. */
export class MemoryTable<Row> {
  readonly name: string;
  private readonly rows = new Map<string, Row>();
  private readonly record: (change: RowChange) => void;
  private readonly indexes: readonly TableIndex<Row>[];

  constructor(name: string, record: (change: RowChange) => void, indexes: readonly TableIndex<Row>[] = []) {
    this.name = name;
    this.record = record;
    this.indexes = indexes;
  }

  get(key: string): Row | undefined {
    return this.rows.get(key);
  }

  put(key: string, row: Row): void {
    this.change(key, row);
    this.replace(key, row);
  }

  /**
   * Replaces fields of a row and returns the changed row. Does nothing and returns `undefined` when there is no row with this key, like an
   * UPDATE in SQL.
   */
  patch(key: string, patch: Partial<Row>): Row | undefined {
    const row = this.rows.get(key);
    if (row === undefined) return undefined;
    const patched = { ...row, ...patch };
    this.put(key, patched);
    return patched;
  }

  delete(key: string): void {
    if (!this.rows.has(key)) return;
    this.change(key, undefined);
    this.replace(key, undefined);
  }

  values(): IterableIterator<Row> {
    return this.rows.values();
  }

  where(holds: (row: Row) => boolean): Row[] {
    return [...this.rows.values()].filter(holds);
  }

  undo({ key, before }: RowChange): void {
    this.replace(key, before as Row | undefined);
  }

  private replace(key: string, after: Row | undefined): void {
    const before = this.rows.get(key);
    for (const index of this.indexes) index.replace(key, before, after);
    if (after === undefined) this.rows.delete(key);
    else this.rows.set(key, after);
  }

  private change(key: string, after: Row | undefined): void {
    this.record({ table: this as MemoryTable<unknown>, key, before: this.rows.get(key), after });
  }
}

type SequenceName = 'task' | 'session' | 'cursor' | 'stream' | 'fact';

/** A database sequence. `last` is the number that the sequence has assigned last. */
export type Sequence = { readonly last: number };

/** A result, and 1 once its trainer has collected it, else 0. */
export type StoredResult = ResultRow & { readonly collected: number };

export type StoredTask = TaskRow & { readonly order_no: number };

const byPlace = (a: SessionRow, b: SessionRow): number => b.priority - a.priority || a.queue_order - b.queue_order;
const byDuration = (a: SessionRow, b: SessionRow): number =>
  b.priority - a.priority || b.expected_ms - a.expected_ms || a.queue_order - b.queue_order;
const byCursor = (a: StoredResult, b: StoredResult): number => a.cursor - b.cursor;
const queuedOf = (row: SessionRow): string | null => (row.status === 'QUEUED' ? row.trainer : null);
const isLeased = (row: SessionRow): boolean => row.lease_expires_ms !== null;
/** Value of an index whose rows are all in one group. */
export const ALL = 'all';

/** All tables of one in-memory database, and a list of the changes since the last call of `take`. */
export class MemoryState {
  private changes: RowChange[] = [];
  readonly tasks: MemoryTable<StoredTask>;
  readonly sessions: MemoryTable<SessionRow>;
  readonly sessionsByTask = new GroupIndex<SessionRow>((row) => row.task_id);
  /** Leased sessions by node. */
  readonly held = new GroupIndex<SessionRow>((row) => (isLeased(row) ? row.node_id : null));
  readonly leasedByTrainer = new GroupIndex<SessionRow>((row) => (isLeased(row) ? row.trainer : null));
  /** Sessions whose cancellation their node does not know yet, by node. */
  readonly cancelPending = new GroupIndex<SessionRow>((row) => (row.cancel_requested === 1 ? row.node_id : null));
  /** Queued sessions by trainer, in the order in which they are leased. */
  readonly queue = new SortedIndex<SessionRow>(queuedOf, byPlace);
  /** Queued sessions by trainer, the session with the longest expected duration first. */
  readonly longestQueue = new SortedIndex<SessionRow>(queuedOf, byDuration);
  readonly resultsByTask = new SortedIndex<StoredResult>((row) => row.task_id, byCursor);
  readonly resultsByTrainer = new SortedIndex<StoredResult>((row) => row.trainer, byCursor);
  readonly resultsInOrder = new SortedIndex<StoredResult>(() => ALL, byCursor);
  /** Results that were not collected yet, by trainer. */
  readonly uncollected = new GroupIndex<StoredResult>((row) => (row.collected === 0 ? row.trainer : null));
  readonly deliveriesBySession = new GroupIndex<DeliveryRow>((row) => row.session_id);
  readonly tasksByKey = new GroupIndex<StoredTask>((row) => row.idempotency_key);
  readonly unfinishedCancelled = new GroupIndex<StoredTask>((row) =>
    row.status === 'cancelled' && row.ended_ms === null ? ALL : null,
  );
  readonly tasksWithDeadline = new GroupIndex<StoredTask>((row) =>
    row.status === 'running' && row.deadline_ms !== null ? ALL : null,
  );
  /** Results by session id. */
  readonly results: MemoryTable<StoredResult>;
  /** Deliveries of nodes. The key is `<session id>/<lease epoch>` of the delivered attempt. */
  readonly deliveries: MemoryTable<DeliveryRow>;
  readonly nodes: MemoryTable<NodeRow>;
  /** The state of the engines of each node, as JSON text. */
  readonly nodeEngines: MemoryTable<{ readonly node_id: string; readonly info: string }>;
  readonly callbacks: MemoryTable<CallbackRow>;
  readonly tombstones: MemoryTable<{ readonly task_id: string; readonly expires_ms: number }>;
  readonly engines: MemoryTable<EngineRow>;
  readonly engineState: MemoryTable<EngineStateRow>;
  readonly serviceTime: MemoryTable<{ readonly now_ms: number }>;
  readonly durations: MemoryTable<DurationRow>;
  readonly consumers: MemoryTable<ConsumerRow>;
  /** Aliases of tasks. The key is `<API>/<alias>`. */
  readonly aliases: MemoryTable<AliasRow>;
  readonly batchStreams: MemoryTable<BatchStreamRow & { readonly order_no: number }>;
  /** Rows of batch streams. The key is `<batch id>/<row index>`. */
  readonly batchRows: MemoryTable<BatchDataRow>;
  /** Plans of epochs. The key is `<batch id>/<epoch>`. */
  readonly batchPlans: MemoryTable<{ readonly batch_id: string; readonly rows: string }>;
  /** Groups of batch streams. The key is `<batch id>/<group number>`. */
  readonly batchGroups: MemoryTable<BatchGroupRow>;
  /** Facts of ended sessions by session id. */
  readonly facts: MemoryTable<StoredFact>;
  private readonly sequences: MemoryTable<Sequence>;

  constructor() {
    const record = (change: RowChange): void => void this.changes.push(change);
    this.tasks = new MemoryTable('tasks', record, [this.tasksByKey, this.unfinishedCancelled, this.tasksWithDeadline]);
    this.sessions = new MemoryTable('sessions', record, [
      ...[this.sessionsByTask, this.held, this.leasedByTrainer, this.cancelPending],
      ...[this.queue, this.longestQueue],
    ]);
    this.results = new MemoryTable('results', record, [
      ...[this.resultsByTask, this.resultsByTrainer, this.resultsInOrder],
      this.uncollected,
    ]);
    this.deliveries = new MemoryTable('deliveries', record, [this.deliveriesBySession]);
    this.nodes = new MemoryTable('nodes', record);
    this.nodeEngines = new MemoryTable('node_engines', record);
    this.callbacks = new MemoryTable('callbacks', record);
    this.tombstones = new MemoryTable('tombstones', record);
    this.engines = new MemoryTable('engines', record);
    this.engineState = new MemoryTable('engine_state', record);
    this.serviceTime = new MemoryTable('service_time', record);
    this.durations = new MemoryTable('durations', record);
    this.consumers = new MemoryTable('consumers', record);
    this.aliases = new MemoryTable('aliases', record);
    this.batchStreams = new MemoryTable('batch_streams', record);
    this.batchRows = new MemoryTable('batch_rows', record);
    this.batchPlans = new MemoryTable('batch_plans', record);
    this.batchGroups = new MemoryTable('batch_groups', record);
    this.facts = new MemoryTable('session_facts', record);
    this.sequences = new MemoryTable('sequences', record);
  }

  next(sequence: SequenceName): number {
    const last = (this.sequences.get(sequence)?.last ?? 0) + 1;
    this.sequences.put(sequence, { last });
    return last;
  }

  /** Returns the number that a sequence has assigned last; 0 when it has assigned no number yet. */
  lastOf(sequence: SequenceName): number {
    return this.sequences.get(sequence)?.last ?? 0;
  }

  /** Returns the changes of all tables since the previous call of `take`, oldest first. */
  take(): readonly RowChange[] {
    const taken = this.changes;
    this.changes = [];
    return taken;
  }

  /** Undoes changes that `take` returned, starting with the newest change. */
  undo(changes: readonly RowChange[]): void {
    for (let i = changes.length - 1; i >= 0; i--) {
      const change = changes[i] as RowChange;
      change.table.undo(change);
    }
  }
}
