import type { CompletionRecord, SessionView, Trajectory } from '@floe-rl/core/schema';
import { ApiError, getJson } from '../../api.ts';
import { type SessionParts, savedSession } from '../../saved.ts';
import { callsOf, type SessionCall } from './calls.ts';

export type LoadedSession = SessionParts & { readonly calls: readonly SessionCall[] };

/** Loads a session with its calls. A running session has no calls yet. A saved page contains its session. */
export async function loadSession(id: string, aborted: AbortSignal): Promise<LoadedSession> {
  const parts = savedSession ?? (await partsOf(id, aborted));
  return { ...parts, calls: callsOf(parts.records, parts.trajectory) };
}

async function partsOf(id: string, aborted: AbortSignal): Promise<SessionParts> {
  const path = `sessions/${encodeURIComponent(id)}`;
  const [view, records, trajectory] = await Promise.all([
    getJson<SessionView>(path, aborted),
    ifThere(getJson<readonly CompletionRecord[]>(`${path}/completions`, aborted)),
    ifThere(getJson<Trajectory>(`${path}/trajectory`, aborted)),
  ]);
  return { view, records: records ?? [], trajectory };
}

/** Resolves with `null` for a part that the session does not have. */
async function ifThere<T>(loading: Promise<T>): Promise<T | null> {
  try {
    return await loading;
  } catch (error) {
    if (error instanceof ApiError && error.code === 'not_found') return null;
    throw error;
  }
}
