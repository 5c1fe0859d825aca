import { FloeError } from '../../core/errors.ts';
import type { CallKind } from '../../schema/index.ts';

/**
 * Model calls of any kind for each turn that the main agent may have, and the least for a session. Kinds are told by what the
 * sandboxed agent sends, so a kind without a bound would be a way around the bound on turns. Generous, since sub-agents do
 * most of the work in some harnesses: a turn that starts three of them is worth some thirty calls.
 */
const CALLS_PER_TURN = 32;
const LEAST_CALLS = 256;

/**
 * Counts a session's turns: recorded completions of kind `main` but for those that the engine broke off, and what an agent
 * has read of replies before it went away; and its calls, which are those of every kind. A request beyond either limit is refused for good, one that might be beyond it once those that run
 * have ended, for now.
 */
export class TurnLimit {
  private readonly limit: number | null;
  private readonly calls: Count;
  private readonly turns: Count;
  private readonly onLimit: () => void;
  private told = false;

  constructor(limit: number | null, onLimit: () => void) {
    this.limit = limit;
    this.turns = new Count(limit ?? Number.POSITIVE_INFINITY);
    this.calls = new Count(limit === null ? Number.POSITIVE_INFINITY : Math.max(LEAST_CALLS, CALLS_PER_TURN * limit));
    this.onLimit = onLimit;
  }

  /** Throws `turn_limit` or `overloaded`. */
  refuse(kind: CallKind): void {
    const counts = this.countsOf(kind);
    if (counts.some((count) => count.isFull())) {
      if (!this.told) {
        this.told = true;
        this.onLimit();
      }
      // No word of this may sound like an overlong prompt: harnesses would compact and try again.
      const details = { turns: this.limit, calls: this.calls.limit };
      throw new FloeError('turn_limit', 'this session is over: it has had all of its turns', details);
    }
    if (counts.some((count) => count.mayBeFull())) {
      throw new FloeError('overloaded', 'the last turn of this session is running');
    }
  }

  begun(kind: CallKind): void {
    for (const count of this.countsOf(kind)) count.running++;
  }

  ended(kind: CallKind, answered: boolean): void {
    for (const count of this.countsOf(kind)) {
      count.running--;
      if (answered) count.recorded++;
    }
  }

  private countsOf(kind: CallKind): readonly Count[] {
    return kind === 'main' ? [this.turns, this.calls] : [this.calls];
  }
}

class Count {
  recorded = 0;
  running = 0;
  readonly limit: number;

  constructor(limit: number) {
    this.limit = limit;
  }

  isFull(): boolean {
    return this.recorded >= this.limit;
  }

  mayBeFull(): boolean {
    return this.recorded + this.running >= this.limit;
  }
}
