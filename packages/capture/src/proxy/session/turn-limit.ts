import { FloeError } from '@floe-rl/core';
import type { CallKind } from '@floe-rl/core/schema';

/**
 * A session that may have N turns may make this many times N model calls of any kind, but at least {@link MIN_CALLS}. The sandboxed agent
 * determines the kind of its calls, so it could evade the limit on turns if calls of other kinds were not limited. The factor is generous
 * because in some harnesses sub-agents do most of the work: a turn that starts three of them causes some thirty calls.
 */
const CALLS_PER_TURN = 32;
/** Smallest limit on the model calls of a session that has a limit on turns. It matters for sessions with few turns. */
const MIN_CALLS = 256;

/**
 * Limits the turns and the model calls of a session. A turn is a completion of call kind `main` that the engine did not abort. A call of kind
 * `main` is also a turn if its client disconnected after a part of the reply was streamed. Calls of every kind count towards the limit of
 * calls.
 *
 * After a limit is reached, every request is refused permanently. While running calls could still reach a limit, a new request is refused
 * temporarily.
 */
export class TurnLimit {
  private readonly limit: number | null;
  private readonly calls: Counter;
  private readonly mainCalls: Counter;
  private readonly onLimit: () => void;
  private isReported = false;

  /**
   * `limit` is the maximum number of turns; `null` means no limit. `onLimit` is called once, when the first request is refused permanently.
   */
  constructor(limit: number | null, onLimit: () => void) {
    this.limit = limit;
    this.mainCalls = new Counter(limit ?? Number.POSITIVE_INFINITY);
    this.calls = new Counter(limit === null ? Number.POSITIVE_INFINITY : Math.max(MIN_CALLS, CALLS_PER_TURN * limit));
    this.onLimit = onLimit;
  }

  /** The number of turns so far, as the task's `max_turns` counts them. */
  get turns(): number {
    return this.mainCalls.recorded;
  }

  /** Throws `turn_limit` when a limit for calls of this kind has been reached, and `overloaded` when the running calls could reach it. */
  refuse(kind: CallKind): void {
    const counters = this.countersOf(kind);
    if (counters.some((counter) => counter.isFull())) {
      if (!this.isReported) {
        this.isReported = true;
        this.onLimit();
      }
      // The error message must not resemble the error for an overlong prompt. Harnesses react to that error by compacting the conversation and
      // retrying.
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

  /** Whether the limit will be reached if all running calls are answered. */
  mayBeFull(): boolean {
    return this.recorded + this.running >= this.limit;
  }
}
