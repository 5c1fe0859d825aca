import type { Clock } from '../core/clock.ts';
import type { Outcome, RolloutEvent, SessionStatus, SessionSummary, TaskRequest } from '../schema/index.ts';
import type { BlobStore, SessionRow, StoreTables } from '../store/index.ts';
import type { RolloutConfig } from './config.ts';
import type { EventBus } from './event-bus.ts';
import type { ServiceTime } from './service-time.ts';
import type { Scheduling } from './sessions/scheduling.ts';
import type { CounterName, Counters } from './status/counters.ts';
import type { Topic, Wakeups } from './wakeups.ts';
import type { WatchedStore } from './watched-store.ts';

/** Where the server says what it did; a pino logger fits. */
export interface RolloutLog {
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/** What every operation of the control plane works with. */
export type RolloutContext = {
  readonly config: RolloutConfig;
  readonly store: WatchedStore;
  readonly blobs: BlobStore;
  readonly clock: Clock;
  /** From 0 up to 1. */
  readonly random: () => number;
  /** A new id that sorts by time. */
  readonly newId: (prefix: string) => string;
  readonly counters: Counters;
  readonly time: ServiceTime;
  readonly scheduling: Scheduling;
  readonly wakeups: Wakeups;
  readonly events: EventBus;
  readonly log: RolloutLog;
  /** Throws a FloeError when the task names a plug-in that does not exist or configures it wrongly. */
  readonly validateTask: (task: TaskRequest) => void | Promise<void>;
  /** Aborts when the server closes. */
  readonly closing: AbortSignal;
};

/** What a log line says of a session that has changed its status. */
type SessionMove = Pick<SessionRow, 'task_id' | 'session_id' | 'attempt' | 'epoch' | 'node_id' | 'status'> & {
  readonly outcome?: Outcome;
};

/** What the world is told after a transaction is on disk, and not before. */
export class Effects {
  readonly events: RolloutEvent[] = [];
  readonly topics = new Set<Topic>();
  readonly counted: CounterName[] = [];
  readonly moves: SessionMove[] = [];

  /** `before`: its status, where progress alone may be the news. */
  sessionChanged(row: SessionRow, summary: SessionSummary | null = null, before: SessionStatus | null = null): void {
    if (row.status !== before) this.moves.push(moveOf(row, summary));
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

/** What servers on one store tell each other. */
type Announcement = { readonly topics: readonly Topic[]; readonly events: readonly RolloutEvent[] };

/** Runs `work` in one transaction, then publishes its effects, here and at the other servers on the store. */
export async function change<T>(
  context: RolloutContext,
  work: (tables: StoreTables, effects: Effects) => Promise<T>,
): Promise<T> {
  let effects = new Effects();
  const value = await context.store.transaction((tables) => {
    // The store may run the work again; only what the last run did has happened.
    effects = new Effects();
    return work(tables, effects);
  });
  for (const name of effects.counted) context.counters.add(name);
  tellLog(context, effects);
  const { events, topics } = effects;
  publish(context, { events, topics: [...topics] });
  if (events.length > 0 || topics.size > 0) {
    context.store.announce(JSON.stringify({ events, topics: [...topics] } satisfies Announcement));
  }
  return value;
}

function tellLog({ log }: RolloutContext, { moves, events }: Effects): void {
  for (const event of events) {
    const { task_id } = event;
    if (event.type === 'task.created') log.info({ task_id, sessions: event.total_sessions }, 'task submitted');
    if (event.type === 'task.completed') log.info({ task_id, status: event.status }, 'task ended');
  }
  for (const move of moves) log.info(move, 'session moved');
}

function moveOf(row: SessionRow, summary: SessionSummary | null): SessionMove {
  const { task_id, session_id, attempt, epoch, node_id, status } = row;
  const names = { task_id, session_id, attempt, epoch, node_id, status };
  return summary === null ? names : { ...names, outcome: summary.outcome };
}

/** Passes on what other servers on the store have done; returns the end of that. */
export function followAnnouncements(context: RolloutContext): () => void {
  return context.store.listen((message) => publish(context, JSON.parse(message) as Announcement));
}

function publish(context: RolloutContext, { events, topics }: Announcement): void {
  for (const event of events) context.events.publish(event);
  for (const topic of topics) context.wakeups.wake(topic);
}
