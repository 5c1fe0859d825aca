import { settleAll } from '@floe-rl/core';
import { wordsOf } from '@floe-rl/core/protocol';
import { type SessionSummary, taskRequestSchema } from '@floe-rl/core/schema';
import type { ResultBlobs, Store, StoreTables } from '../store/index.ts';
import { countsOf } from './sessions/end.ts';
import { factsOf } from './sessions/facts.ts';

/** A session that ended elsewhere, with its parts in the blob store. */
export type RecordedSession = {
  readonly summary: SessionSummary;
  readonly blobs: ResultBlobs;
  readonly harness: string;
  /** Text of the session's messages for the full-text search. */
  readonly text: string;
  readonly turns: number;
  readonly sampledTokens: number;
  /** Unix time in milliseconds. */
  readonly endedMs: number;
};

/**
 * Digest of the tasks that are made for recorded sessions. No submission has this digest, so no submission counts as a repeat of such a task.
 */
const NO_DIGEST = 'recorded';

/**
 * Adds sessions that ended elsewhere to a store that no server uses yet, in one transaction. A task is made for each new task id. The caller
 * gives each session an id and a sample index that the store does not have yet.
 */
export async function storeRecorded(store: Store, sessions: readonly RecordedSession[]): Promise<void> {
  await store.transaction(async (tables) => {
    for (const session of sessions) await addRecorded(tables, session);
  });
}

async function addRecorded(tables: StoreTables, session: RecordedSession): Promise<void> {
  const { summary, blobs, endedMs, turns, sampledTokens } = session;
  const { task_id, session_id, sample_index, metadata } = summary;
  const task = taskRequestSchema.parse({ task_id, instruction: '', agent: { harness: session.harness }, metadata });
  const endedAt = new Date(endedMs).toISOString();
  const known = await tables.tasks.get(task_id);
  if (known === undefined) {
    await tables.tasks.insert({
      task_id,
      idempotency_key: null,
      digest: NO_DIGEST,
      request: JSON.stringify(task),
      status: 'completed',
      harness: task.agent.harness,
      trainer: task.trainer,
      total_sessions: 1,
      completed_sessions: 0,
      usable_sessions: 0,
      baseline_sessions: 0,
      refilled: 0,
      refills_left: 0,
      early_stopped: 0,
      reward_sum: 0,
      reward_count: 0,
      callback_url: null,
      deadline_ms: null,
      ended_ms: 0,
      created_at: endedAt,
    });
  } else await tables.tasks.update(task_id, { total_sessions: known.total_sessions + 1 });
  const ended = { turns, sampled_tokens: sampledTokens };
  const shared = { task_id, trainer: task.trainer, priority: 0, max_attempts: 1, expected_ms: 0, memory_mb: 0 };
  const times = { not_before_ms: 0, queued_since_ms: 0, created_at: endedAt };
  await tables.sessions.insert({ ...shared, ...times }, [{ session_id, sample_index }]);
  await settleAll([
    tables.sessions.update(session_id, {
      ...ended,
      status: summary.status,
      attempt: summary.attempt,
      epoch: summary.epoch,
      node_id: summary.node_id,
      unusable: summary.unusable,
      summary: JSON.stringify(summary),
      updated_at: endedAt,
    }),
    tables.tasks.addEnded(task_id, countsOf(summary, false)),
    tables.results.append({ session_id, task_id, trainer: task.trainer }, blobs),
    tables.facts.add(factsOf({ trainer: task.trainer, ...ended }, summary, task, endedMs), wordsOf(session.text)),
  ]);
}
