import type { Clock } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';

/** What is killed ends within milliseconds, unless it hangs in the kernel: on a file system that is away, for instance. */
const KILL_WAIT_MS = 10_000;

/**
 * Settles as `ending`, the end of a command that is killed when `signal` aborts; rejects with `runtime_failed` when that takes
 * too long. What is left then is for the janitor.
 */
export function endOrGiveUp<T>(ending: Promise<T>, signal: AbortSignal, clock: Clock, name: string): Promise<T> {
  return new Promise((resolve, reject) => {
    let cancel = (): void => {};
    const killed = (): void => {
      cancel = clock.schedule(KILL_WAIT_MS, () => {
        const message = `a command of ${name} does not end although it was killed ${KILL_WAIT_MS / 1000} s ago`;
        reject(new FloeError('runtime_failed', message, { unkillable: true }));
      });
    };
    if (signal.aborted) killed();
    else signal.addEventListener('abort', killed, { once: true });
    const settled = (): void => {
      cancel();
      signal.removeEventListener('abort', killed);
    };
    ending.finally(settled).then(resolve, reject);
  });
}
