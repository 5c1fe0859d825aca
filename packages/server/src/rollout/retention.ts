import type { RolloutContext } from './context.ts';

/** Maximum number of sessions that one transaction removes. In SQLite, other transactions wait meanwhile. */
const SESSION_BATCH = 200;

/** Maximum number of batch streams that one transaction removes. */
const STREAM_BATCH = 10;

/**
 * Maximum number of blobs that are checked for references and then removed together. The batch is small, so that a delivery seldom stores
 * one of these blobs between the check and the removal.
 */
const BLOB_BATCH = 100;

/**
 * A blob younger than this is not removed even when no row refers to it, because a delivery stores its blobs some seconds before the rows
 * that refer to them.
 */
const BLOB_GRACE_MS = 3_600_000;

/**
 * Removes tasks that ended longer ago than `retain_tasks_hours` and whose results were collected, then the blobs to which no row refers any
 * more. Several servers on one store may do so concurrently. Throws `store_unavailable` when the store fails.
 */
export async function sweepRetention(context: RolloutContext): Promise<void> {
  await removeTasks(context);
  await removeBlobs(context);
}

async function removeTasks(context: RolloutContext): Promise<void> {
  const { retain_tasks_hours: hours } = context.config;
  if (hours === null) return;
  const endedBeforeMs = context.time.nowMs() - hours * 3_600_000;
  while (!context.closing.aborted) {
    const removed = await context.store.transaction((tables) => tables.tasks.removeEnded(endedBeforeMs, SESSION_BATCH));
    context.counters.add('tasks_removed', removed.tasks);
    if (removed.tasks + removed.sessions === 0) break;
  }
  await context.store.transaction((tables) => tables.batches.removeEnded(endedBeforeMs, STREAM_BATCH));
}

async function removeBlobs(context: RolloutContext): Promise<void> {
  let batch: string[] = [];
  const beforeMs = context.clock.nowMs() - BLOB_GRACE_MS;
  for await (const ref of context.blobs.olderThan(beforeMs)) {
    if (batch.push(ref) < BLOB_BATCH) continue;
    await removeUnreferenced(context, batch, beforeMs);
    batch = [];
    if (context.closing.aborted) return;
  }
  await removeUnreferenced(context, batch, beforeMs);
}

async function removeUnreferenced(context: RolloutContext, refs: readonly string[], beforeMs: number): Promise<void> {
  if (refs.length === 0) return;
  const referenced = await context.store.read((tables) => tables.results.referenced(refs));
  const unreferenced = refs.filter((ref) => !referenced.has(ref));
  await Promise.all(unreferenced.map((ref) => context.blobs.remove(ref, beforeMs)));
  context.counters.add('blobs_removed', unreferenced.length);
}
