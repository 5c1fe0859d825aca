import { createHash } from 'node:crypto';
import type { EngineLocality, EnginePolicy } from '@floe-rl/core/schema';
import { LRUCache } from 'lru-cache';

/** Distance between two machines: 0 for one host, 1 for one rack, 2 for one zone, 3 for everything else. */
export type Distance = 0 | 1 | 2 | 3;

/** The properties of an engine that a choice policy can read. */
export type Candidate = {
  readonly id: string;
  /** How far the engine is from this host; a near engine is preferred among equally busy ones. */
  readonly distance: Distance;
  /** Number of sampling calls in flight on the engine. */
  readonly inflight: number;
};

/** Decides which engine of one pool gets a session's next call. */
export interface ChoicePolicy {
  joined(engine: Candidate): void;
  left(engine: Candidate): void;
  /** Picks the engine of the session's next call from `free`, which is not empty and contains only engines that were passed to `joined`. */
  pick<T extends Candidate>(sessionId: string, free: readonly T[]): T;
  /** Records that a call of the session was assigned to this engine. */
  assigned(sessionId: string, engine: Candidate): void;
}

export function choicePolicy(policy: EnginePolicy, locality: EngineLocality = 'none'): ChoicePolicy {
  const base = basePolicy(policy);
  return locality === 'prefer_local' ? new NearestFirst(base) : base;
}

function basePolicy(policy: EnginePolicy): ChoicePolicy {
  switch (policy) {
    case 'least_in_flight':
      return new LeastInFlight();
    case 'assignment_count':
      return new AssignmentCount();
    case 'consistent_hash':
      return new HashRing();
  }
}

/**
 * Maximum number of sessions for which the last engine is remembered. It is more than a node ever runs concurrently. One session takes
 * about 100 bytes.
 */
const REMEMBERED_SESSIONS = 16_384;

/**
 * A session stays on the engine that caches its prefix unless that engine is much busier than the least busy one. With `n` calls in flight on
 * the least busy engine, the session's engine may have up to `n + n * STICKY_SHARE + STICKY_CALLS`. Another engine would have to prefill the
 * session's whole history, which delays every reply in
 * its batch. A batch that is 50 % larger decodes only a little slower. In `npm run bench -- pool`, a share of 0.25 with 2 for
 * {@link STICKY_CALLS} costs 6 % of the throughput; larger values than the present ones gain nothing.
 */
const STICKY_SHARE = 0.5;
/**
 * Number of calls in flight that a session's engine may have beyond what {@link STICKY_SHARE} permits, before the session moves. When few
 * calls are in flight, a difference this small is chance and slows no call.
 */
const STICKY_CALLS = 4;

/**
 * Picks the engine with the fewest calls in flight, but keeps a session on its previous engine because of the prefix cache. Among
 * equally busy engines it prefers the nearest, then decides by hash.
 */
class LeastInFlight implements ChoicePolicy {
  /** Id of the engine that got each session's last call, keyed by session id. */
  private readonly lastEngines = new LRUCache<string, string>({ max: REMEMBERED_SESSIONS });
  private readonly weights = new Map<string, number>();

  joined({ id }: Candidate): void {
    this.weights.set(id, hash32(id));
  }

  left({ id }: Candidate): void {
    this.weights.delete(id);
  }

  pick<T extends Candidate>(sessionId: string, free: readonly T[]): T {
    const least = Math.min(...free.map(({ inflight }) => inflight));
    const lastId = this.lastEngines.peek(sessionId);
    const last = lastId === undefined ? undefined : free.find(({ id }) => id === lastId);
    if (last !== undefined && last.inflight <= least * (1 + STICKY_SHARE) + STICKY_CALLS) return last;
    const leastBusy = free.filter(({ inflight }) => inflight === least);
    return this.byHash(sessionId, withinDistance(leastBusy, nearestOf(leastBusy)));
  }

  assigned(sessionId: string, { id }: Candidate): void {
    this.lastEngines.set(sessionId, id);
  }

  /**
   * Picks the engine with the highest hash of session and engine (rendezvous hashing), so that another gateway, or this gateway after a
   * restart, picks the same engine.
   */
  private byHash<T extends Candidate>(sessionId: string, candidates: readonly T[]): T {
    const [first] = candidates as readonly [T, ...T[]];
    if (candidates.length === 1) return first;
    const session = hash32(sessionId);
    const weight = ({ id }: Candidate): number => mix(session ^ (this.weights.get(id) ?? 0));
    return candidates.reduce((best, candidate) => (weight(candidate) > weight(best) ? candidate : best), first);
  }
}

function hash32(text: string): number {
  return createHash('sha256').update(text).digest().readUInt32LE(0);
}

/** Mixes the bits of a hash, so that each bit of `value` affects all bits of the result (the finaliser of MurmurHash3). */
function mix(value: number): number {
  let h = value >>> 0;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

/**
 * Picks the engine that was assigned the fewest calls so far, whatever their outcome, as ProRL does with a min-heap. It scans all engines
 * instead, because a heap cannot skip the engines that are full or excluded.
 */
class AssignmentCount implements ChoicePolicy {
  private readonly counts = new Map<string, number>();

  /**
   * Adds an engine with the lowest call count of the pool's other engines. With a count of 0, the new engine would get every call until it
   * had been assigned as many calls as the other engines.
   */
  joined({ id }: Candidate): void {
    this.counts.set(id, this.counts.size === 0 ? 0 : Math.min(...this.counts.values()));
  }

  left({ id }: Candidate): void {
    this.counts.delete(id);
  }

  pick<T extends Candidate>(_sessionId: string, free: readonly T[]): T {
    return free.reduce((best, candidate) => {
      const difference = this.countOf(candidate) - this.countOf(best);
      return difference < 0 || (difference === 0 && candidate.distance < best.distance) ? candidate : best;
    });
  }

  assigned(_sessionId: string, engine: Candidate): void {
    this.counts.set(engine.id, this.countOf(engine) + 1);
  }

  private countOf({ id }: Candidate): number {
    return this.counts.get(id) ?? 0;
  }
}

/**
 * Number of points on the hash ring per engine. With a few engines, the largest share of the ring is then within about 20 % of the mean.
 */
const POINTS_PER_ENGINE = 160;

type RingPoint = { readonly at: number; readonly id: string };

/**
 * Consistent hashing: a session is assigned to the first free engine whose point follows the session's position on the ring. When an
 * engine leaves, only its sessions move; when an engine joins, sessions move only to it.
 */
class HashRing implements ChoicePolicy {
  private ring: readonly RingPoint[] = [];

  joined({ id }: Candidate): void {
    const points = Array.from({ length: POINTS_PER_ENGINE }, (_, i) => ({ at: ringPosition(`${id}#${i}`), id }));
    this.ring = [...this.ring, ...points].sort((a, b) => a.at - b.at || (a.id < b.id ? -1 : 1));
  }

  left({ id }: Candidate): void {
    this.ring = this.ring.filter((point) => point.id !== id);
  }

  pick<T extends Candidate>(sessionId: string, free: readonly T[]): T {
    const byId = new Map(free.map((candidate) => [candidate.id, candidate]));
    const start = this.firstIndexFrom(ringPosition(sessionId));
    for (let i = 0; i < this.ring.length; i++) {
      const point = this.ring[(start + i) % this.ring.length] as RingPoint;
      const candidate = byId.get(point.id);
      if (candidate !== undefined) return candidate;
    }
    return free[0] as T;
  }

  assigned(): void {}

  /** Returns the index of the first point at or after position `at`; the ring's length when every point is before `at`. */
  private firstIndexFrom(at: number): number {
    let low = 0;
    let high = this.ring.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if ((this.ring[middle] as RingPoint).at < at) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/** Hashes a text to a position on the ring. A position has 48 bits, so that points of thousands of engines do not coincide. */
function ringPosition(text: string): number {
  return createHash('sha256').update(text).digest().readUIntBE(0, 6);
}

/**
 * Prefers near engines: `base` picks among the free engines of the smallest distance. A session whose last call went farther keeps choosing
 * among all engines up to that distance. Otherwise its history would be prefilled nearby as soon as a near engine is free.
 */
class NearestFirst implements ChoicePolicy {
  private readonly base: ChoicePolicy;
  /** Distance of the engine of each session's last call, keyed by session id, unless it was on this host. */
  private readonly lastDistances = new LRUCache<string, Distance>({ max: REMEMBERED_SESSIONS });

  constructor(base: ChoicePolicy) {
    this.base = base;
  }

  joined(engine: Candidate): void {
    this.base.joined(engine);
  }

  left(engine: Candidate): void {
    this.base.left(engine);
  }

  pick<T extends Candidate>(sessionId: string, free: readonly T[]): T {
    const limit = Math.max(this.lastDistances.get(sessionId) ?? 0, nearestOf(free));
    return this.base.pick(sessionId, withinDistance(free, limit));
  }

  assigned(sessionId: string, engine: Candidate): void {
    if (engine.distance === 0) this.lastDistances.delete(sessionId);
    else this.lastDistances.set(sessionId, engine.distance);
    this.base.assigned(sessionId, engine);
  }
}

function nearestOf(candidates: readonly Candidate[]): number {
  return Math.min(...candidates.map(({ distance }) => distance));
}

function withinDistance<T extends Candidate>(candidates: readonly T[], limit: number): T[] {
  return candidates.filter(({ distance }) => distance <= limit);
}
