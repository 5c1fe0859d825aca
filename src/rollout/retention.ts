import { FloeError } from '../core/errors.ts';
import { pause } from './background.ts';
import type { RolloutContext } from './context.ts';

/** Tasks that one transaction removes. A task may have thousands of sessions, and others wait meanwhile. */
const TASK_BATCH = 10;

/** Blobs that are asked about and removed together: few, so that what is stored again meanwhile is hardly ever among them. */
const BLOB_BATCH = 100;

/** Bytes are stored before the row that names them; a delivery takes seconds. */
const BLOB_GRACE_MS = 3_600_000;

/**
 * Removes tasks that ended and were collected longer ago than they are retained, then blobs that nothing names any more.
 * What two servers do at the same time they do once. Throws `store_unavailable`.
 */
export async function sweepRetention(context: RolloutContext): Promise<void> {
  await removeTasks(context);
  await removeBlobs(context);
}

async function removeTasks(context: RolloutContext): Promise<void> {
  const { retain_tasks_hours: hours } = context.config;
  if (hours === null) return;
  const endedBeforeMs = context.time.nowMs() - hours * 3_600_000;
  for (let removed = TASK_BATCH; removed === TASK_BATCH && !context.closing.aborted; ) {
    removed = await context.store.transaction((tables) => tables.tasks.removeEnded(endedBeforeMs, TASK_BATCH));
    context.counters.add('tasks_removed', removed);
  }
}

async function removeBlobs(context: RolloutContext): Promise<void> {
  let batch: string[] = [];
  const beforeMs = context.clock.nowMs() - BLOB_GRACE_MS;
  for await (const ref of context.blobs.olderThan(beforeMs)) {
    if (batch.push(ref) < BLOB_BATCH) continue;
    await removeUnnamed(context, batch, beforeMs);
    batch = [];
    if (context.closing.aborted) return;
  }
  await removeUnnamed(context, batch, beforeMs);
}

async function removeUnnamed(context: RolloutContext, refs: readonly string[], beforeMs: number): Promise<void> {
  if (refs.length === 0) return;
  const named = await context.store.read((tables) => tables.results.referenced(refs));
  const unnamed = refs.filter((ref) => !named.has(ref));
  await Promise.all(unnamed.map((ref) => context.blobs.remove(ref, beforeMs)));
  context.counters.add('blobs_removed', unnamed.length);
}

/** Runs until the server closes. The first time is an interval after the start: nothing is removed by a server that was started by mistake. */
export async function retainForever(context: RolloutContext): Promise<void> {
  for (;;) {
    await pause(context, context.config.retention_sweep_seconds * 1000);
    if (context.closing.aborted) return;
    try {
      await sweepRetention(context);
    } catch (thrown) {
      if (!FloeError.is(thrown) || thrown.code !== 'store_unavailable') throw thrown;
      context.log.error({ err: thrown }, 'the store is unavailable; what is to be removed waits');
    }
  }
}
