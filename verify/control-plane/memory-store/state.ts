import type {
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
} from '../../../src/store/rows.ts';
import { MemoryTable, type RowChange } from './table.ts';

/** What a sequence has given out last. */
export type Sequence = { readonly last: number };

export type StoredTask = TaskRow & { readonly order_no: number };

/** The rows of one database, and the changes that are not yet safe. */
export class MemoryState {
  private changes: RowChange[] = [];
  readonly tasks: MemoryTable<StoredTask>;
  readonly sessions: MemoryTable<SessionRow>;
  /** By session. */
  readonly results: MemoryTable<ResultRow>;
  /** By session and epoch. */
  readonly deliveries: MemoryTable<DeliveryRow>;
  readonly nodes: MemoryTable<NodeRow>;
  readonly callbacks: MemoryTable<CallbackRow>;
  readonly tombstones: MemoryTable<{ readonly task_id: string; readonly expires_ms: number }>;
  readonly engines: MemoryTable<EngineRow>;
  readonly engineState: MemoryTable<EngineStateRow>;
  readonly serviceTime: MemoryTable<{ readonly now_ms: number }>;
  readonly durations: MemoryTable<DurationRow>;
  readonly consumers: MemoryTable<ConsumerRow>;
  private readonly sequences: MemoryTable<Sequence>;

  constructor() {
    const record = (change: RowChange): void => void this.changes.push(change);
    this.tasks = new MemoryTable('tasks', record);
    this.sessions = new MemoryTable('sessions', record);
    this.results = new MemoryTable('results', record);
    this.deliveries = new MemoryTable('deliveries', record);
    this.nodes = new MemoryTable('nodes', record);
    this.callbacks = new MemoryTable('callbacks', record);
    this.tombstones = new MemoryTable('tombstones', record);
    this.engines = new MemoryTable('engines', record);
    this.engineState = new MemoryTable('engine_state', record);
    this.serviceTime = new MemoryTable('service_time', record);
    this.durations = new MemoryTable('durations', record);
    this.consumers = new MemoryTable('consumers', record);
    this.sequences = new MemoryTable('sequences', record);
  }

  next(sequence: 'task' | 'session' | 'cursor'): number {
    const last = (this.sequences.get(sequence)?.last ?? 0) + 1;
    this.sequences.put(sequence, { last });
    return last;
  }

  /** 0: it has given out nothing yet. */
  lastOf(sequence: 'task' | 'session' | 'cursor'): number {
    return this.sequences.get(sequence)?.last ?? 0;
  }

  /** The changes since the last call, oldest first. */
  take(): readonly RowChange[] {
    const taken = this.changes;
    this.changes = [];
    return taken;
  }

  /** Takes back changes that were taken, newest first. */
  undo(changes: readonly RowChange[]): void {
    for (let i = changes.length - 1; i >= 0; i--) {
      const change = changes[i] as RowChange;
      change.table.undo(change);
    }
  }
}
