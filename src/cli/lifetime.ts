import { once } from 'node:events';
import { linkAbort } from '../core/abort.ts';
import { FloeError } from '../core/errors.ts';

/**
 * Waits for SIGINT or SIGTERM, or until `over` aborts. Its signal handlers are then removed, so that a further signal ends the process
 * immediately, which is Node's default.
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

/**
 * Returns the error with which a node process exits after a newer process took over its node id. `takeover` is the error that the server
 * returned.
 */
export function displacedError(takeover: FloeError): FloeError {
  return new FloeError('setup_failed', takeover.message, { ...takeover.details, code: takeover.code }, takeover);
}
