import { type Clock, sleep } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';

const FIRST_PAUSE_MS = 100;
/** A server that is back is found within this time. */
const LONGEST_PAUSE_MS = 5_000;

/** Repeats what failed for a reason that may pass, with growing pauses, until nothing has worked for `limitMs`. */
export class Patience {
  private readonly clock: Clock;
  private readonly limitMs: number;
  private readonly ended: AbortSignal;
  private failures = 0;
  private failingSinceMs: number | null = null;

  /** `ended`: the client is closed, and nothing is tried again. */
  constructor(clock: Clock, limitMs: number, ended: AbortSignal) {
    this.clock = clock;
    this.ended = ended;
    this.limitMs = limitMs;
  }

  /** Something worked: the time starts anew with the next failure. */
  reset(): void {
    this.failures = 0;
    this.failingSinceMs = null;
  }

  /** Resolves when it is time to try again. Throws `thrown` itself when repeating is of no use, or has been for too long. */
  async afterFailure(thrown: unknown, signal?: AbortSignal): Promise<void> {
    if (signal?.aborted || this.ended.aborted || !mayPass(thrown)) throw thrown;
    const nowMs = this.clock.monotonicMs();
    this.failingSinceMs ??= nowMs;
    const leftMs = this.failingSinceMs + this.limitMs - nowMs;
    if (leftMs <= 0) throw thrown;
    const longestMs = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** this.failures++, leftMs);
    // Clients that lost one server must not come back to it all at once.
    const either = signal === undefined ? this.ended : AbortSignal.any([signal, this.ended]);
    await sleep(this.clock, longestMs * (0.5 + Math.random() / 2), either);
  }
}

/** A defect of the server is retryable in principle, but would be met again. */
function mayPass(thrown: unknown): boolean {
  return FloeError.is(thrown) && thrown.retryable && thrown.code !== 'internal';
}
