import type { Generated, Kysely } from 'kysely';
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
import type { StoreTables } from '../store.ts';
import { SqlCallbacks } from './callbacks.ts';
import { SqlDurations } from './durations.ts';
import { SqlEngines } from './engines.ts';
import type { SqlFlavor } from './flavor.ts';
import { SqlNodes } from './nodes.ts';
import { SqlResults } from './results.ts';
import { SqlServiceTime } from './service-time.ts';
import { SqlSessions } from './sessions.ts';
import { SqlTasks } from './tasks.ts';
import { SqlTombstones } from './tombstones.ts';

/** The database as kysely sees it; created by the migrations of each store. */
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
  /** `trainer` is empty for readers of all results: part of a key, it cannot be null. */
  consumers: { consumer: string; trainer: string; cursor: number };
};

export type Connection = Kysely<Database>;

/** All tables over one connection, which is in a transaction. */
export function tablesOver(db: Connection, flavor: SqlFlavor): StoreTables {
  return {
    tasks: new SqlTasks(db, flavor),
    sessions: new SqlSessions(db, flavor),
    results: new SqlResults(db, flavor),
    nodes: new SqlNodes(db, flavor),
    callbacks: new SqlCallbacks(db, flavor),
    tombstones: new SqlTombstones(db, flavor),
    engines: new SqlEngines(db, flavor),
    serviceTime: new SqlServiceTime(db, flavor),
    durations: new SqlDurations(db, flavor),
  };
}
