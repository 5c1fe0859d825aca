import type { Candidate, ChoicePolicy } from './choice.ts';

/** More sessions than a node ever runs at a time; about 100 bytes each. */
const REMEMBERED_SESSIONS = 16_384;

/**
 * Two phases: a session goes to an engine of this host while one has capacity, and otherwise to whichever the policy picks among
 * all. One that had to go elsewhere stays among all, so that its history is not computed anew here as soon as a place is free.
 */
export class LocalFirst implements ChoicePolicy {
  private readonly among: ChoicePolicy;
  /** Sessions whose last call went to another host; least recently used first. */
  private readonly away = new Set<string>();

  constructor(among: ChoicePolicy) {
    this.among = among;
  }

  joined(engine: Candidate): void {
    this.among.joined(engine);
  }

  left(engine: Candidate): void {
    this.among.left(engine);
  }

  pick<T extends Candidate>(sessionId: string, free: readonly T[]): T {
    const near = this.away.has(sessionId) ? [] : free.filter(({ local }) => local);
    return this.among.pick(sessionId, near.length > 0 ? near : free);
  }

  assigned(sessionId: string, engine: Candidate): void {
    this.away.delete(sessionId);
    if (!engine.local) this.away.add(sessionId);
    for (const oldest of this.away) {
      if (this.away.size <= REMEMBERED_SESSIONS) break;
      this.away.delete(oldest);
    }
    this.among.assigned(sessionId, engine);
  }
}
