import { FloeError } from '../core/errors.ts';
import type { CallKind } from '../schema/index.ts';

/**
 * Counts a session's turns: recorded completions of kind `main` but for those that the engine broke off. A request beyond the
 * limit is refused for good, one that might be beyond it once those that run have ended, for now.
 */
export class TurnLimit {
  private readonly limit: number | null;
  private readonly onLimit: () => void;
  private recorded = 0;
  private running = 0;
  private told = false;

  constructor(limit: number | null, onLimit: () => void) {
    this.limit = limit;
    this.onLimit = onLimit;
  }

  /** Throws `turn_limit` or `overloaded`. */
  refuse(kind: CallKind): void {
    if (this.limit === null || kind !== 'main') return;
    if (this.recorded >= this.limit) {
      if (!this.told) {
        this.told = true;
        this.onLimit();
      }
      // No word of this may sound like an overlong prompt: harnesses would compact and try again.
      throw new FloeError('turn_limit', 'this session is over: it has had all of its turns', { turns: this.limit });
    }
    if (this.recorded + this.running >= this.limit) {
      throw new FloeError('overloaded', 'the last turn of this session is running');
    }
  }

  begun(kind: CallKind): void {
    if (kind === 'main') this.running++;
  }

  ended(kind: CallKind, answered: boolean): void {
    if (kind !== 'main') return;
    this.running--;
    if (answered) this.recorded++;
  }
}
