import { FloeError } from '../core/errors.ts';
import type { RolloutContext } from './context.ts';
import { removeDrainedNodes } from './nodes/nodes.ts';
import { sweepDeadlines } from './sessions/cancel.ts';
import { sweepExpired } from './sessions/claim.ts';

/** What every server looks after from time to time; several may do so at once. */
export async function sweepOnce(context: RolloutContext): Promise<void> {
  await sweepExpired(context);
  await sweepDeadlines(context);
  await removeDrainedNodes(context);
}

/** Runs until the server closes. */
export async function sweepForever(context: RolloutContext): Promise<void> {
  while (!context.closing.aborted) {
    try {
      await sweepOnce(context);
    } catch (thrown) {
      // The store may be full or busy for a while; leases are swept when it is back.
      if (!FloeError.is(thrown) || thrown.code !== 'store_unavailable') throw thrown;
      context.log.error({ err: thrown }, 'the store is unavailable; expired leases wait');
    }
    await pause(context, context.config.sweep_seconds * 1000);
  }
}

/** Resolves after `ms`, or as soon as the server closes. */
export function pause(context: RolloutContext, ms: number): Promise<void> {
  return new Promise((resolve) => {
    const end = (): void => {
      cancelTimer();
      context.closing.removeEventListener('abort', end);
      resolve();
    };
    const cancelTimer = context.clock.schedule(ms, end);
    context.closing.addEventListener('abort', end, { once: true });
    if (context.closing.aborted) end();
  });
}
