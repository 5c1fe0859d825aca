import { FloeError } from '@floe-rl/core';
import type { Store } from '../store/index.ts';
import type { Counters } from './status/counters.ts';

/** A store whose failures are counted. */
export type WatchedStore = Store & {
  /** The store's error message for the latest transaction, when it refused it; `null` when the latest transaction succeeded. */
  readonly failure: string | null;
};

/**
 * Wraps the store and counts its failures. Keeps the message of the latest failure, which `GET /rollout/status` shows, until a transaction
 * succeeds. A successful read does not clear it, because a store that can be read may still refuse writes.
 */
export function watchedStore(inner: Store, counters: Counters): WatchedStore {
  let failure: string | null = null;
  const watch = async <T>(running: Promise<T>): Promise<T> => {
    try {
      return await running;
    } catch (thrown) {
      if (isStoreUnavailable(thrown)) {
        failure = thrown.message;
        counters.add('store_failures');
      }
      throw thrown;
    }
  };
  return {
    get failure() {
      return failure;
    },
    transaction: async (work) => {
      const value = await watch(inner.transaction(work));
      failure = null;
      return value;
    },
    read: (work) => watch(inner.read(work)),
    announce: inner.announce.bind(inner),
    listen: inner.listen.bind(inner),
    close: inner.close.bind(inner),
  };
}

export function isStoreUnavailable(thrown: unknown): thrown is FloeError {
  return FloeError.is(thrown) && thrown.code === 'store_unavailable';
}

/**
 * Runs one round of background work. When the store is unavailable, it logs `postponed` and resolves to `undefined`; nothing is lost,
 * because the rows stay in the store and the caller's next round finds them. Throws every other error.
 */
export async function postponeWhileUnavailable<T>(
  log: { error(fields: object, message: string): void },
  postponed: string,
  work: () => Promise<T>,
): Promise<T | undefined> {
  try {
    return await work();
  } catch (thrown) {
    if (!isStoreUnavailable(thrown)) throw thrown;
    log.error({ err: thrown }, `the store is unavailable; ${postponed} until it is back`);
    return undefined;
  }
}
