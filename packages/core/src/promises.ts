import type { Clock } from './clock.ts';
import { nextEventLoopTurn } from './event-loop.ts';

type Values<T extends readonly Promise<unknown>[]> = { [K in keyof T]: Awaited<T[K]> };

/**
 * Waits for promises like `Promise.all`, but settles only when every promise has settled, so that no work continues in the background while
 * the caller handles a failure. Rejects with the reason of the failed promise that is first in the list. For the statements of a database
 * transaction, this reason is the original failure, because the database rejects all statements after the first failed one.
 */
export async function settleAll<T extends readonly Promise<unknown>[]>(promises: readonly [...T]): Promise<Values<T>> {
  await Promise.allSettled(promises);
  return Promise.all(promises) as Promise<Values<T>>;
}

/**
 * Runs cleanup steps from the last to the first and empties the list. All steps run even if some fail; the first failure is thrown
 * afterwards.
 */
export async function undoAll(steps: (() => Promise<unknown>)[]): Promise<void> {
  const failures: unknown[] = [];
  for (let undo = steps.pop(); undo !== undefined; undo = steps.pop()) {
    try {
      await undo();
    } catch (error) {
      failures.push(error);
    }
  }
  if (failures.length > 0) throw failures[0];
}

/**
 * Returns a function to be called between the parts of a long computation. When `maxMs` milliseconds have passed since it last waited, it
 * waits for the next turn of the event loop. So the computation blocks the event loop for at most `maxMs` and one part.
 */
export function sharedTurns(clock: Clock, maxMs: number): () => Promise<void> {
  let turnStartMs = clock.monotonicMs();
  return async () => {
    if (clock.monotonicMs() - turnStartMs < maxMs) return;
    await nextEventLoopTurn();
    turnStartMs = clock.monotonicMs();
  };
}
