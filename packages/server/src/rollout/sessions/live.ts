import type { LiveSession, LiveSessions } from '@floe-rl/core/schema';
import { LRUCache } from 'lru-cache';
import type { RolloutContext } from '../context.ts';
import type { EventBus } from '../events.ts';

/** Maximum number of sessions whose newest reply is kept: about 2 MB. More sessions rarely run at a time. */
const MAX_REPLIES = 10_000;

/** The beginnings of the newest replies of running sessions, as far as this server has heard of them. They are kept in memory only. */
export class LiveReplies {
  private readonly replies = new LRUCache<string, string>({ max: MAX_REPLIES });

  constructor(events: EventBus) {
    events.subscribe((event) => {
      if (event.type !== 'session.state_changed') return;
      // A session that was queued once more has no reply in its next attempt yet.
      if (event.outcome !== null || event.status === 'QUEUED') this.replies.delete(event.session_id);
      else if (event.last_reply !== undefined) this.replies.set(event.session_id, event.last_reply);
    });
  }

  of(sessionId: string): string | null {
    return this.replies.get(sessionId) ?? null;
  }
}

/** Returns the sessions that nodes run now, at most `limit` of them. With `taskId`, returns only sessions of this task. */
export async function readLiveSessions(
  context: RolloutContext,
  replies: LiveReplies,
  taskId: string | null,
  limit: number,
): Promise<LiveSessions> {
  const { rows, total } = await context.store.read(async ({ sessions }) => {
    const held = [...(await sessions.leasedByNode()).values()];
    return {
      rows: await sessions.leased(taskId, limit),
      total: held.reduce((sum, { count }) => sum + count, 0),
    };
  });
  const shown = rows.map(
    (row): LiveSession => ({
      session_id: row.session_id,
      task_id: row.task_id,
      sample_index: row.sample_index,
      status: row.status,
      attempt: row.attempt,
      node_id: row.node_id,
      turns: row.turns,
      sampled_tokens: row.sampled_tokens,
      created_at: row.created_at,
      updated_at: row.updated_at,
      last_reply: replies.of(row.session_id),
    }),
  );
  return { sessions: shown, total };
}
