import { once } from 'node:events';
import { linkAbort } from '../core/abort.ts';
import { FloeError } from '../core/errors.ts';

/**
 * Resolves on SIGINT or SIGTERM, or when `over` aborts. A signal after that ends the process immediately, which is Node's default.
 */
export async function waitForSignal(over?: AbortSignal): Promise<void> {
  const { signal, abort, release } = linkAbort(over);
  try {
    await Promise.race([once(process, 'SIGINT', { signal }), once(process, 'SIGTERM', { signal })]);
  } catch (error) {
    if (over?.aborted !== true) throw error;
  } finally {
    abort(undefined);
    release();
  }
}

/** Creates the error with which a process ends after a newer process took over its node id, from the error of the server. */
export function displacedError(takeover: FloeError): FloeError {
  return new FloeError('setup_failed', takeover.message, { ...takeover.details, code: takeover.code }, takeover);
}
