import { createHash } from 'node:crypto';
import type { Candidate, ChoicePolicy } from './choice.ts';

/**
 * A session stays on the engine that holds its prefix while that has at most this share more calls in flight than the least busy
 * one, and {@link STICKY_CALLS} on top. Elsewhere its whole history is computed anew, which holds up every reply in that engine's
 * batch, while a batch that is half as large again decodes only a little slower. In `bench/pool.mjs` a quarter and two cost 6 % of the
 * throughput; more than this gains nothing.
 */
const STICKY_SHARE = 0.5;
/** With few calls in flight a share says nothing: that many more are chance, and slow nobody down. */
const STICKY_CALLS = 4;

/** More sessions than a node ever runs at a time; about 100 bytes each. */
const REMEMBERED_SESSIONS = 16_384;

/** The engine with the fewest calls in flight, with stickiness for the prefix cache. Among equals this host first, then by hash. */
export class LeastInFlight implements ChoicePolicy {
  /** The engine of each session's last call; least recently used first. */
  private readonly homes = new Map<string, string>();
  private readonly weights = new Map<string, number>();

  joined({ id }: Candidate): void {
    this.weights.set(id, hash32(id));
  }

  left({ id }: Candidate): void {
    this.weights.delete(id);
  }

  pick<T extends Candidate>(sessionId: string, free: readonly T[]): T {
    const least = Math.min(...free.map(({ inflight }) => inflight));
    const homeId = this.homes.get(sessionId);
    const home = homeId === undefined ? undefined : free.find(({ id }) => id === homeId);
    if (home !== undefined && home.inflight <= least * (1 + STICKY_SHARE) + STICKY_CALLS) return home;
    const idle = free.filter(({ inflight }) => inflight === least);
    const local = idle.filter((candidate) => candidate.local);
    return this.byHash(sessionId, local.length > 0 ? local : idle);
  }

  assigned(sessionId: string, { id }: Candidate): void {
    this.homes.delete(sessionId);
    this.homes.set(sessionId, id);
    for (const oldest of this.homes.keys()) {
      if (this.homes.size <= REMEMBERED_SESSIONS) break;
      this.homes.delete(oldest);
    }
  }

  /** Highest random weight: a gateway that was restarted, or another one, comes to the same engine. */
  private byHash<T extends Candidate>(sessionId: string, among: readonly T[]): T {
    const [first] = among as readonly [T, ...T[]];
    if (among.length === 1) return first;
    const session = hash32(sessionId);
    const weight = ({ id }: Candidate): number => mix(session ^ (this.weights.get(id) ?? 0));
    return among.reduce((best, candidate) => (weight(candidate) > weight(best) ? candidate : best), first);
  }
}

function hash32(text: string): number {
  return createHash('sha256').update(text).digest().readUInt32LE(0);
}

/** Spreads a difference in any bit over all of them (the finaliser of MurmurHash3). */
function mix(value: number): number {
  let h = value >>> 0;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}
