import { once } from 'node:events';

/** Resolves on SIGINT or SIGTERM. A second signal ends the process at once, as it would without floe. */
export async function untilSignalled(): Promise<void> {
  const keepAlive = new AbortController();
  await Promise.race([
    once(process, 'SIGINT', { signal: keepAlive.signal }),
    once(process, 'SIGTERM', { signal: keepAlive.signal }),
  ]);
  keepAlive.abort();
}
