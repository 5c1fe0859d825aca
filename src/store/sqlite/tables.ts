import type { Generated, Kysely } from 'kysely';
import type {
  CallbackRow,
  DeliveryRow,
  EngineRow,
  EngineStateRow,
  NodeRow,
  ResultRow,
  SessionRow,
  TaskRow,
} from '../rows.ts';

/** The database as kysely sees it; created by migrations.ts. */
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
};

export type Connection = Kysely<Database>;
