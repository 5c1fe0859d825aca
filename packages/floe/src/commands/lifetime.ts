import { once } from 'node:events';
import { FloeError, linkAbort } from '@floe-rl/core';

/**
 * Resolves on SIGINT or SIGTERM, or when `over` aborts. The signal handlers are then removed, so that a further signal ends the process
 * immediately, which is the default of Node.js.
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

/** Exit code after Ctrl-C, the same as in shells: 128 plus the number of SIGINT. */
const INTERRUPTED_EXIT_CODE = 130;

/**
 * Runs `work` and aborts the signal that it gets on SIGINT or SIGTERM. `work` must not settle before everything that it started has stopped.
 * When `work` rejects after the abort, this function resolves with `null` and sets the exit code of the process to
 * {@link INTERRUPTED_EXIT_CODE}. A second SIGINT or SIGTERM ends the process immediately.
 */
export async function interruptible<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T | null> {
  const over = new AbortController();
  const stopping = new AbortController();
  const signalled = waitForSignal(over.signal).then(() => stopping.abort());
  try {
    return await work(stopping.signal);
  } catch (error) {
    if (!stopping.signal.aborted) throw error;
    process.exitCode = INTERRUPTED_EXIT_CODE;
    return null;
  } finally {
    over.abort();
    await signalled;
  }
}

/**
 * Returns the error of a node process that exits because a newer process took over its node id. `takeover` is the error that the server
 * returned.
 */
export function displacedError(takeover: FloeError): FloeError {
  return new FloeError('setup_failed', takeover.message, { ...takeover.details, code: takeover.code }, takeover);
}
