import { type Clock, systemClock } from '@floe-rl/core';

/**
 * Maximum time in milliseconds for which one iteration of the event loop starts work directly. Work that arrives after this time waits for a
 * later iteration.
 */
const MAX_STRETCH_MS = 5;

/**
 * Divides the event loop among sessions. Requests that arrive together would otherwise be handled in one iteration of the event loop, and a
 * session with hundreds of requests would delay all other sessions. Pieces of work wait here for their turn. While some are waiting, the
 * sessions take turns, and each iteration of the event loop starts one piece.
 */
export class FairTurns {
  private readonly clock: Clock;
  /** The waiting pieces of work of each owner, in order of arrival. The first owner is next. */
  private readonly waiting = new Map<object, (() => void)[]>();
  /** Time at which the first piece of work in this iteration of the event loop began; `null` when none has begun. */
  private begunMs: number | null = null;

  constructor(clock: Clock = systemClock) {
    this.clock = clock;
  }

  /**
   * Resolves when `owner`, which is a session, may do its next piece of work. Returns `null` when it may do so immediately. Pieces of the same
   * owner have their turns in order of arrival.
   */
  next(owner: object): Promise<void> | null {
    if (this.waiting.size === 0) {
      const nowMs = this.clock.monotonicMs();
      if (this.begunMs === null) {
        this.begunMs = nowMs;
        setImmediate(() => this.startIteration());
      }
      if (nowMs - this.begunMs < MAX_STRETCH_MS) return null;
    }
    return new Promise((resolve) => {
      const own = this.waiting.get(owner);
      if (own === undefined) this.waiting.set(owner, [resolve]);
      else own.push(resolve);
    });
  }

  private startIteration(): void {
    this.begunMs = null;
    const [first] = this.waiting;
    if (first === undefined) return;
    const [owner, own] = first;
    // The owner is removed. If it has more work, it is added again as the last owner.
    this.waiting.delete(owner);
    const start = own.shift();
    if (own.length > 0) this.waiting.set(owner, own);
    this.begunMs = this.clock.monotonicMs();
    setImmediate(() => this.startIteration());
    start?.();
  }
}
