import { once } from 'node:events';
import { FloeError } from '../core/errors.ts';

/**
 * Resolves on SIGINT or SIGTERM, or when nobody waits any more (`over`). A signal that comes after that ends the process at
 * once, as it would without floe.
 */
export async function waitForSignal(over?: AbortSignal): Promise<void> {
  const heard = new AbortController();
  const signal = over === undefined ? heard.signal : AbortSignal.any([heard.signal, over]);
  try {
    await Promise.race([once(process, 'SIGINT', { signal }), once(process, 'SIGTERM', { signal })]);
  } catch (error) {
    if (over?.aborted !== true) throw error;
  } finally {
    heard.abort();
  }
}

/** What a process ends with whose node id a newer process has. `by`: what the server told it. */
export function takenOver(by: FloeError): FloeError {
  return new FloeError('setup_failed', by.message, { ...by.details, code: by.code }, by);
}
