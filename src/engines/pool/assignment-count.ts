import type { Candidate, ChoicePolicy } from './choice.ts';

/**
 * ProRL's min-heap: the engine that was assigned the fewest calls so far, whatever became of them. A scan instead of a heap, since
 * engines that are full or passed over must be left out at each choice.
 */
export class AssignmentCount implements ChoicePolicy {
  private readonly counts = new Map<string, number>();

  /** One that joins later begins with the least count there is: from 0 it would get every call until it has caught up. */
  joined({ id }: Candidate): void {
    this.counts.set(id, this.counts.size === 0 ? 0 : Math.min(...this.counts.values()));
  }

  left({ id }: Candidate): void {
    this.counts.delete(id);
  }

  pick<T extends Candidate>(_sessionId: string, free: readonly T[]): T {
    return free.reduce((best, candidate) => {
      const difference = this.countOf(candidate) - this.countOf(best);
      return difference < 0 || (difference === 0 && candidate.local && !best.local) ? candidate : best;
    });
  }

  assigned(_sessionId: string, engine: Candidate): void {
    this.counts.set(engine.id, this.countOf(engine) + 1);
  }

  private countOf({ id }: Candidate): number {
    return this.counts.get(id) ?? 0;
  }
}
