import type { LiveSession, LiveSessions, RolloutEvent } from '@floe-rl/core/schema';

/** A session that runs or has just ended. An ended session has its outcome, and the time at which it leaves the page. */
export type ShownSession = LiveSession & { readonly outcome: string | null; readonly goneAtMs: number | null };

/** Time for which a session that has ended stays on the page, in milliseconds. */
const ENDED_MS = 10_000;
/** Maximum number of sessions that are kept. Further sessions are only counted. */
export const MAX_SHOWN = 200;

/** The sessions of the page by their id, in the order in which they came. */
export type ShownSessions = ReadonlyMap<string, ShownSession>;

/** Returns what to show after the running sessions were loaded. A session that was shown as running and is not among them is removed. */
export function withLoaded(shown: ShownSessions, { sessions }: LiveSessions): ShownSessions {
  const running = sessions.map(
    (session) => [session.session_id, { ...session, outcome: null, goneAtMs: null }] as const,
  );
  const ended = [...shown].filter(([, { goneAtMs }]) => goneAtMs !== null);
  // A session that the server has put into the queue again is a running one.
  return new Map([...ended, ...running].slice(-MAX_SHOWN));
}

/** Returns what to show after an event. `taskId` is the task that the page is limited to; `null` for all. */
export function withEvent(
  shown: ShownSessions,
  event: RolloutEvent,
  taskId: string | null,
  nowMs: number,
): ShownSessions {
  if (event.type !== 'session.state_changed' || (taskId !== null && event.task_id !== taskId)) return shown;
  const known = shown.get(event.session_id);
  if (event.outcome === null && event.status === 'QUEUED') return without(shown, event.session_id);
  // A session that ended in the queue never ran.
  if (known === undefined && (event.outcome !== null || shown.size >= MAX_SHOWN)) return shown;
  const now = new Date(nowMs).toISOString();
  return new Map(shown).set(event.session_id, {
    session_id: event.session_id,
    task_id: event.task_id,
    sample_index: event.sample_index,
    status: event.status,
    attempt: known?.attempt ?? 1,
    node_id: known?.node_id ?? null,
    turns: event.turns,
    sampled_tokens: event.sampled_tokens,
    created_at: known?.created_at ?? now,
    updated_at: now,
    last_reply: event.last_reply ?? known?.last_reply ?? null,
    outcome: event.outcome,
    goneAtMs: event.outcome === null ? null : nowMs + ENDED_MS,
  });
}

/** Removes the sessions that ended some time ago. */
export function withoutGone(shown: ShownSessions, nowMs: number): ShownSessions {
  const kept = [...shown].filter(([, { goneAtMs }]) => goneAtMs === null || goneAtMs > nowMs);
  return kept.length === shown.size ? shown : new Map(kept);
}

function without(shown: ShownSessions, id: string): ShownSessions {
  if (!shown.has(id)) return shown;
  const kept = new Map(shown);
  kept.delete(id);
  return kept;
}
