import type { Clock } from '../core/clock.ts';
import type { RolloutEvent, SessionSummary, TaskRequest } from '../schema/index.ts';
import type { BlobStore, SessionRow, Store, StoreTables } from '../store/index.ts';
import type { RolloutConfig } from './config.ts';
import type { EventBus } from './event-bus.ts';
import type { ServiceTime } from './service-time.ts';
import type { Topic, Wakeups } from './wakeups.ts';

/** Where the server says what it did; a pino logger fits. */
export interface RolloutLog {
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/** What every operation of the control plane works with. */
export type RolloutContext = {
  readonly config: RolloutConfig;
  readonly store: Store;
  readonly blobs: BlobStore;
  readonly clock: Clock;
  readonly time: ServiceTime;
  readonly wakeups: Wakeups;
  readonly events: EventBus;
  readonly log: RolloutLog;
  /** Throws a FloeError when the task names a plug-in that does not exist or configures it wrongly. */
  readonly validateTask: (task: TaskRequest) => void | Promise<void>;
  /** Aborts when the server closes. */
  readonly closing: AbortSignal;
};

/** What the world is told after a transaction is on disk, and not before. */
export class Effects {
  readonly events: RolloutEvent[] = [];
  readonly topics = new Set<Topic>();

  sessionChanged(row: SessionRow, summary: SessionSummary | null = null): void {
    this.events.push({
      type: 'session.state_changed',
      task_id: row.task_id,
      session_id: row.session_id,
      sample_index: row.sample_index,
      status: row.status,
      turns: row.turns,
      sampled_tokens: row.sampled_tokens,
      reward: summary?.reward ?? null,
      outcome: summary?.outcome ?? null,
    });
  }
}

/** Runs `work` in one transaction, then publishes its effects. */
export async function change<T>(
  context: RolloutContext,
  work: (tables: StoreTables, effects: Effects) => Promise<T>,
): Promise<T> {
  const effects = new Effects();
  const value = await context.store.transaction((tables) => work(tables, effects));
  for (const event of effects.events) context.events.publish(event);
  for (const topic of effects.topics) context.wakeups.wake(topic);
  return value;
}
