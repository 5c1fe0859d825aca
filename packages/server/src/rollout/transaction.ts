import type { Outcome, RolloutEvent, SessionStatus, SessionSummary } from '@floe-rl/core/schema';
import type { SessionRow, StoreTables } from '../store/index.ts';
import type { RolloutContext } from './context.ts';
import type { CounterName } from './status/counters.ts';
import type { Topic } from './wakeups.ts';

/** The fields of the log line about a session that has changed its status. */
type SessionMove = Pick<SessionRow, 'task_id' | 'session_id' | 'attempt' | 'epoch' | 'node_id' | 'status'> & {
  readonly outcome?: Outcome;
};

/**
 * One transaction of the control plane: the tables to change, and the effects that follow once the change is on disk. Counters, log lines,
 * events and wake-ups are only collected during the transaction, so a transaction that fails has none of these effects.
 */
export class Transaction {
  readonly context: RolloutContext;
  readonly tables: StoreTables;
  private readonly events: RolloutEvent[] = [];
  private readonly topics = new Set<Topic>();
  private readonly counted: CounterName[] = [];
  private readonly moves: SessionMove[] = [];

  constructor(context: RolloutContext, tables: StoreTables) {
    this.context = context;
    this.tables = tables;
  }

  /** Publishes `event` once the transaction is committed. */
  publish(event: RolloutEvent): void {
    this.events.push(event);
  }

  /** Wakes the requests that wait for `topic` once the transaction is committed. */
  wake(topic: Topic): void {
    this.topics.add(topic);
  }

  /** Adds one to a counter once the transaction is committed. */
  count(name: CounterName): void {
    this.counted.push(name);
  }

  /**
   * Publishes the session's new state once the transaction is committed, and logs the session when its status has changed. `previousStatus` is
   * the session's earlier status. It may be `null` when the caller has certainly changed the status and not only the progress. `lastReply` is
   * the beginning of a new reply.
   */
  sessionChanged(
    row: SessionRow,
    summary: SessionSummary | null = null,
    previousStatus: SessionStatus | null = null,
    lastReply?: string,
  ): void {
    if (row.status !== previousStatus) this.moves.push(moveOf(row, summary));
    this.publish({
      type: 'session.state_changed',
      task_id: row.task_id,
      session_id: row.session_id,
      sample_index: row.sample_index,
      status: row.status,
      turns: row.turns,
      sampled_tokens: row.sampled_tokens,
      reward: summary?.reward ?? null,
      outcome: summary?.outcome ?? null,
      ...(lastReply === undefined ? {} : { last_reply: lastReply }),
    });
  }

  /**
   * Applies the collected effects on this server, and returns the effects that the other servers on the store need. Called once, after the
   * commit.
   */
  applyEffects(): Announcement {
    const { context, events } = this;
    for (const name of this.counted) context.counters.add(name);
    this.writeLog();
    const announcement: Announcement = { events, topics: [...this.topics] };
    publish(context, announcement);
    return announcement;
  }

  private writeLog(): void {
    const { log } = this.context;
    for (const event of this.events) {
      const { task_id } = event;
      if (event.type === 'task.created') log.info({ task_id, sessions: event.total_sessions }, 'task submitted');
      if (event.type === 'task.completed') log.info({ task_id, status: event.status }, 'task ended');
    }
    for (const move of this.moves) log.info(move, 'session moved');
  }
}

/** The message that informs the other servers on the store of a committed transaction. */
type Announcement = { readonly events: readonly RolloutEvent[]; readonly topics: readonly Topic[] };

/**
 * Runs `work` in one transaction of the store, then applies the transaction's effects. Throws the errors of `work`, and `store_unavailable`
 * when the store fails.
 */
export async function runTransaction<T>(
  context: RolloutContext,
  work: (transaction: Transaction) => Promise<T>,
): Promise<T> {
  let committed: Transaction | undefined;
  const value = await context.store.transaction((tables) => {
    // The store may repeat the work after a conflict. Only the last run is committed, so only its effects are applied.
    const transaction = new Transaction(context, tables);
    committed = transaction;
    return work(transaction);
  });
  const announcement = committed?.applyEffects();
  if (announcement !== undefined && (announcement.events.length > 0 || announcement.topics.length > 0)) {
    context.store.announce(JSON.stringify(announcement));
  }
  return value;
}

function moveOf(row: SessionRow, summary: SessionSummary | null): SessionMove {
  const { task_id, session_id, attempt, epoch, node_id, status } = row;
  const fields = { task_id, session_id, attempt, epoch, node_id, status };
  return summary === null ? fields : { ...fields, outcome: summary.outcome };
}

/** Publishes the events and wake-ups that other servers on the store announce. Returns a function that stops this. */
export function followAnnouncements(context: RolloutContext): () => void {
  return context.store.listen((message) => publish(context, JSON.parse(message) as Announcement));
}

function publish(context: RolloutContext, { events, topics }: Announcement): void {
  for (const event of events) context.events.publish(event);
  for (const topic of topics) context.wakeups.wake(topic);
}
