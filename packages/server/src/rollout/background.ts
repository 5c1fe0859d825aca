import { onAbort } from '@floe-rl/core';
import type { RolloutContext } from './context.ts';
import { removeDrainedNodes } from './nodes/nodes.ts';
import { sweepRetention } from './retention.ts';
import { sweepDeadlines } from './sessions/cancel.ts';
import { foldFacts } from './sessions/facts.ts';
import { sweepExpired } from './sessions/retry.ts';
import { postponeWhileUnavailable } from './watched-store.ts';

/** Number of stored changes of the task counts after which a sweep replaces the changes by their sums, so that the status reads few rows. */
const FOLD_COUNTS_AT = 500;

/**
 * Runs one round of the sweeps: takes back expired leases, cancels tasks whose deadline has passed, removes drained nodes, and adds
 * ended sessions to the totals. Several servers on one store may do so concurrently.
 */
export async function sweepOnce(context: RolloutContext): Promise<void> {
  await sweepExpired(context);
  await sweepDeadlines(context);
  await removeDrainedNodes(context);
  await foldFacts(context);
  await context.store.transaction((tables) => tables.tasks.foldCounts(FOLD_COUNTS_AT));
}

/** Calls {@link sweepOnce} every `sweep_seconds` until the server closes. */
export async function runSweeps(context: RolloutContext): Promise<void> {
  while (!context.closing.aborted) {
    await postponeWhileUnavailable(context.log, 'expired leases wait', () => sweepOnce(context));
    await pause(context, context.config.sweep_seconds * 1000);
  }
}

/**
 * Removes old tasks and blobs every `retention_sweep_seconds` until the server closes. The first sweep runs one interval after
 * the start, so that a server that was started with wrong settings and stopped soon after has removed nothing.
 */
export async function runRetention(context: RolloutContext): Promise<void> {
  for (;;) {
    await pause(context, context.config.retention_sweep_seconds * 1000);
    if (context.closing.aborted) return;
    await postponeWhileUnavailable(context.log, 'old tasks and blobs are kept', () => sweepRetention(context));
  }
}

/** Resolves after `ms` milliseconds, or as soon as the server closes. */
function pause({ clock, closing }: RolloutContext, ms: number): Promise<void> {
  return new Promise((resolve) => {
    let release = (): void => {};
    const end = (): void => {
      cancelTimer();
      release();
      resolve();
    };
    const cancelTimer = clock.schedule(ms, end);
    release = onAbort(closing, end);
  });
}
