import { FloeError } from '../../core/errors.ts';
import type { CallKind } from '../../schema/index.ts';

/**
 * Model calls of any kind per turn of the main agent, and the least number for a session. The sandboxed agent determines the kind of
 * its calls, so it could evade the bound on turns if calls of other kinds were not bounded. The numbers are generous because in some
 * harnesses sub-agents do most of the work: a turn that starts three of them causes some thirty calls.
 */
const CALLS_PER_TURN = 32;
const MIN_CALLS = 256;

/**
 * Bounds a session's turns and calls. A turn is a completion of kind `main` that the engine did not abort, or a call of that kind
 * whose client disconnected after it had read a part of the reply; a call is the same for every kind. A request beyond a bound is
 * refused permanently; one that could exceed it once the running calls have ended is refused temporarily.
 */
export class TurnLimit {
  private readonly limit: number | null;
  private readonly calls: Counter;
  private readonly mainCalls: Counter;
  private readonly onLimit: () => void;
  private isReported = false;

  /** `limit` is the number of turns, `null` for no bound. `onLimit` is called once, when a request is refused permanently. */
  constructor(limit: number | null, onLimit: () => void) {
    this.limit = limit;
    this.mainCalls = new Counter(limit ?? Number.POSITIVE_INFINITY);
    this.calls = new Counter(limit === null ? Number.POSITIVE_INFINITY : Math.max(MIN_CALLS, CALLS_PER_TURN * limit));
    this.onLimit = onLimit;
  }

  /** The turns so far, as `max_turns` counts them. */
  get turns(): number {
    return this.mainCalls.recorded;
  }

  /** Throws `turn_limit` or `overloaded`. */
  refuse(kind: CallKind): void {
    const counters = this.countersOf(kind);
    if (counters.some((counter) => counter.isFull())) {
      if (!this.isReported) {
        this.isReported = true;
        this.onLimit();
      }
      // The message must not resemble that of an overlong prompt, for which harnesses compact the conversation and retry.
      const details = { turns: this.limit, calls: this.calls.limit };
      throw new FloeError('turn_limit', 'this session is over: it has had all of its turns', details);
    }
    if (counters.some((counter) => counter.mayBeFull())) {
      throw new FloeError('overloaded', 'the last turn of this session is running');
    }
  }

  callStarted(kind: CallKind): void {
    for (const counter of this.countersOf(kind)) counter.running++;
  }

  callEnded(kind: CallKind, isAnswered: boolean): void {
    for (const counter of this.countersOf(kind)) {
      counter.running--;
      if (isAnswered) counter.recorded++;
    }
  }

  private countersOf(kind: CallKind): readonly Counter[] {
    return kind === 'main' ? [this.mainCalls, this.calls] : [this.calls];
  }
}

class Counter {
  recorded = 0;
  running = 0;
  readonly limit: number;

  constructor(limit: number) {
    this.limit = limit;
  }

  isFull(): boolean {
    return this.recorded >= this.limit;
  }

  /** Whether the limit is reached if all running calls are answered. */
  mayBeFull(): boolean {
    return this.recorded + this.running >= this.limit;
  }
}
