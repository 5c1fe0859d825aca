import { FloeError } from '../../core/errors.ts';
import type { CallKind } from '../../schema/index.ts';

/**
 * A session that may have N turns may make this many times N model calls of any kind, but at least {@link MIN_CALLS}. The sandboxed agent
 * determines the kind of its calls, so it could evade the limit on turns if calls of other kinds were not limited. The numbers are
 * generous because in some harnesses sub-agents do most of the work: a turn that starts three of them causes some thirty calls.
 */
const CALLS_PER_TURN = 32;
const MIN_CALLS = 256;

/**
 * Limits the turns and the model calls of a session. A turn is a completion of kind `main` that the engine did not abort, or a call of
 * that kind whose client disconnected after a part of the reply was streamed. Calls of every kind count towards the limit of calls. A
 * request beyond a limit is refused permanently; a request that could exceed it once the running calls have ended is refused temporarily.
 */
export class TurnLimit {
  private readonly limit: number | null;
  private readonly calls: Counter;
  private readonly mainCalls: Counter;
  private readonly onLimit: () => void;
  private isReported = false;

  /**
   * `limit` is the largest number of turns; `null` for no limit. `onLimit` is called once, when the first request is refused permanently.
   */
  constructor(limit: number | null, onLimit: () => void) {
    this.limit = limit;
    this.mainCalls = new Counter(limit ?? Number.POSITIVE_INFINITY);
    this.calls = new Counter(limit === null ? Number.POSITIVE_INFINITY : Math.max(MIN_CALLS, CALLS_PER_TURN * limit));
    this.onLimit = onLimit;
  }

  /** The number of turns so far, as `max_turns` counts them. */
  get turns(): number {
    return this.mainCalls.recorded;
  }

  /** Throws `turn_limit` for a call beyond a limit, and `overloaded` for one that could be beyond it once the running calls have ended. */
  refuse(kind: CallKind): void {
    const counters = this.countersOf(kind);
    if (counters.some((counter) => counter.isFull())) {
      if (!this.isReported) {
        this.isReported = true;
        this.onLimit();
      }
      // The message must not resemble the one for an overlong prompt, because harnesses react to that one by compacting the conversation
      // and retrying.
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
