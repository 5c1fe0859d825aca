import { createHash } from 'node:crypto';
import type { Candidate, ChoicePolicy } from './choice.ts';

/** Points per engine. The largest of a few engines' shares is then within some 20 % of the mean. */
const POINTS = 160;

type Point = { readonly at: number; readonly id: string };

/**
 * Consistent hashing: a session belongs to the engine whose point on the ring follows its own, or to the next free one. When an engine
 * leaves only its sessions move, when one joins only to it.
 */
export class HashRing implements ChoicePolicy {
  private ring: readonly Point[] = [];

  joined({ id }: Candidate): void {
    const points = Array.from({ length: POINTS }, (_, i) => ({ at: position(`${id}#${i}`), id }));
    this.ring = [...this.ring, ...points].sort((a, b) => a.at - b.at || (a.id < b.id ? -1 : 1));
  }

  left({ id }: Candidate): void {
    this.ring = this.ring.filter((point) => point.id !== id);
  }

  pick<T extends Candidate>(sessionId: string, free: readonly T[]): T {
    const byId = new Map(free.map((candidate) => [candidate.id, candidate]));
    const start = this.firstFrom(position(sessionId));
    for (let i = 0; i < this.ring.length; i++) {
      const point = this.ring[(start + i) % this.ring.length] as Point;
      const candidate = byId.get(point.id);
      if (candidate !== undefined) return candidate;
    }
    return free[0] as T;
  }

  assigned(): void {}

  /** Index of the first point at or behind `at`; the ring's length when there is none. */
  private firstFrom(at: number): number {
    let low = 0;
    let high = this.ring.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if ((this.ring[middle] as Point).at < at) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/** 48 bits, so that points of thousands of engines do not coincide. */
function position(text: string): number {
  return createHash('sha256').update(text).digest().readUIntBE(0, 6);
}
