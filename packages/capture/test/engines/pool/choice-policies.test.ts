import { VirtualClock } from '@floe-rl/core';
import { enginePolicySchema, type Place } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  type Candidate,
  type ChoicePolicy,
  choicePolicy,
  type Distance,
} from '../../../src/engines/pool/choice-policies.ts';
import { createEnginePools } from '../../../src/engines/pool/managed-engine-pools.ts';
import { distanceBetween, isLocal } from '../../../src/engines/pool/member.ts';
import { never, REQUEST, specOf, ToyEngine } from './toy-engine.ts';

type Server = { id: string; distance: Distance; inflight: number };

const server = (id: string, inflight = 0, distance: Distance = 3): Server => ({ id, distance, inflight });
const distances = fc.constantFrom<Distance>(0, 1, 2, 3);

function joined(policy: ChoicePolicy, servers: readonly Candidate[]): ChoicePolicy {
  for (const one of servers) policy.joined(one);
  return policy;
}

const sessions = Array.from({ length: 400 }, (_, i) => `ses_${i}`);
const ids = fc.uniqueArray(fc.stringMatching(/^[a-z0-9]{1,8}$/), { minLength: 1, maxLength: 9 });

describe.each(enginePolicySchema.options)('%s', (name) => {
  it('picks one of the free engines', () => {
    fc.assert(
      fc.property(
        fc.array(fc.record({ inflight: fc.nat(20), distance: distances, free: fc.boolean() }), { minLength: 1 }),
        fc.array(fc.string(), { minLength: 1 }),
        (facts, names) => {
          const servers = facts.map(({ inflight, distance }, i) => server(`e${i}`, inflight, distance));
          const policy = joined(choicePolicy(name), servers);
          const free = servers.filter((_, i) => facts[i]?.free);
          fc.pre(free.length > 0);
          for (const session of names) {
            const picked = policy.pick(session, free);
            expect(free).toContain(picked);
            policy.assigned(session, picked);
          }
        },
      ),
    );
  });

  it('does not pick an engine that has left', () => {
    const servers = ['a', 'b', 'c'].map((id) => server(id));
    const policy = joined(choicePolicy(name), servers);
    for (const session of sessions) policy.assigned(session, servers[0] as Server);
    policy.left(servers[0] as Server);
    for (const session of sessions) expect(policy.pick(session, servers.slice(1)).id).not.toBe('a');
  });
});

describe('least_in_flight', () => {
  it('assigns a new session to the nearest of the engines with the fewest calls', () => {
    fc.assert(
      fc.property(
        fc.array(fc.record({ inflight: fc.nat(5), distance: distances }), { minLength: 1 }),
        fc.string(),
        (facts, session) => {
          const servers = facts.map(({ inflight, distance }, i) => server(`e${i}`, inflight, distance));
          const picked = joined(choicePolicy('least_in_flight'), servers).pick(session, servers);
          const least = Math.min(...servers.map(({ inflight }) => inflight));
          expect(picked.inflight).toBe(least);
          const leastBusy = servers.filter(({ inflight }) => inflight === least);
          expect(picked.distance).toBe(Math.min(...leastBusy.map(({ distance }) => distance)));
        },
      ),
    );
  });

  it('keeps a session on its engine until that engine is much busier than the least busy one', () => {
    const [home, other] = [server('home', 0), server('other', 8)];
    const policy = joined(choicePolicy('least_in_flight'), [home, other]);
    policy.assigned('ses_1', home);
    const staysAt = (inflight: number): boolean => {
      home.inflight = inflight;
      return policy.pick('ses_1', [home, other]) === home;
    };
    expect([8, 12, 16].map(staysAt)).toEqual([true, true, true]);
    expect([17, 40].map(staysAt)).toEqual([false, false]);
    other.inflight = 0;
    expect([4, 5].map(staysAt)).toEqual([true, false]);
  });

  it('distributes sessions evenly over equally busy engines, and in the same way each time', () => {
    const servers = ['a', 'b', 'c', 'd'].map((id) => server(id));
    const picks = (): string[] => {
      const policy = joined(choicePolicy('least_in_flight'), servers);
      return sessions.map((session) => policy.pick(session, servers).id);
    };
    const first = picks();
    expect(picks()).toEqual(first);
    for (const { id } of servers) expect(first.filter((picked) => picked === id).length).toBeGreaterThan(60);
  });

  it('forgets the least recently used sessions', () => {
    const [home, other] = [server('home', 1), server('other', 0)];
    const policy = joined(choicePolicy('least_in_flight'), [home, other]);
    policy.assigned('old', home);
    policy.assigned('kept', home);
    for (let i = 0; i < 16_383; i++) policy.assigned(`ses_${i}`, home);
    expect(policy.pick('kept', [home, other])).toBe(home);
    expect(policy.pick('old', [home, other])).toBe(other);
  });
});

describe('assignment_count', () => {
  it('assigns like a min-heap over counts', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 6 }), fc.array(fc.nat(63), { maxLength: 80 }), (count, masks) => {
        const servers = Array.from({ length: count }, (_, i) => server(`e${i}`));
        const policy = joined(choicePolicy('assignment_count'), servers);
        const counts = new Map(servers.map(({ id }) => [id, 0]));
        for (const mask of masks) {
          const free = servers.filter((_, i) => (mask >> i) % 2 === 0);
          if (free.length === 0) continue;
          const picked = policy.pick('ses_1', free);
          expect(counts.get(picked.id)).toBe(Math.min(...free.map(({ id }) => counts.get(id) ?? 0)));
          policy.assigned('ses_1', picked);
          counts.set(picked.id, (counts.get(picked.id) ?? 0) + 1);
        }
      }),
    );
  });

  it('prefers this host among equals, and does not send all calls to an engine that joins later', () => {
    const [far, near, late] = [server('far'), server('near', 0, 0), server('late')];
    const policy = joined(choicePolicy('assignment_count'), [far, near]);
    expect(policy.pick('s', [far, near])).toBe(near);
    for (let i = 0; i < 10; i++) policy.assigned('s', i % 2 === 0 ? near : far);
    policy.joined(late);
    const next = Array.from({ length: 6 }, () => {
      const picked = policy.pick('s', [far, near, late]);
      policy.assigned('s', picked);
      return picked.id;
    });
    expect(next.filter((id) => id === 'late')).toHaveLength(2);
  });
});

describe('consistent_hash', () => {
  const placed = (policy: ChoicePolicy, servers: readonly Server[]): string[] =>
    sessions.map((session) => policy.pick(session, servers).id);

  it('moves only the sessions of an engine that leaves, and moves them back when it returns', () => {
    fc.assert(
      fc.property(ids, fc.nat(), (names, which) => {
        const servers = names.map((id) => server(id));
        fc.pre(servers.length > 1);
        const leaving = servers[which % servers.length] as Server;
        const rest = servers.filter((one) => one !== leaving);
        const policy = joined(choicePolicy('consistent_hash'), servers);
        const before = placed(policy, servers);
        policy.left(leaving);
        const without = placed(policy, rest);
        for (const [i, id] of before.entries()) if (id !== leaving.id) expect(without[i]).toBe(id);
        policy.joined(leaving);
        expect(placed(policy, servers)).toEqual(before);
      }),
      { numRuns: 30 },
    );
  });

  it('uses the next engine of the ring when one is full, as if it had left', () => {
    const servers = ['a', 'b', 'c', 'd'].map((id) => server(id));
    const policy = joined(choicePolicy('consistent_hash'), servers);
    const rest = servers.slice(1);
    const overflow = placed(policy, rest);
    policy.left(servers[0] as Server);
    expect(placed(policy, rest)).toEqual(overflow);
  });

  it('assigns a session at the position of a point of the ring to the engine of this point', () => {
    const servers = ['a', 'b', 'c', 'd'].map((id) => server(id));
    const policy = joined(choicePolicy('consistent_hash'), servers);
    for (const { id } of servers) {
      for (let point = 0; point < 160; point++) expect(policy.pick(`${id}#${point}`, servers).id).toBe(id);
    }
  });

  it('gives every engine a share of the sessions', () => {
    const servers = ['a', 'b', 'c', 'd'].map((id) => server(id));
    const before = placed(joined(choicePolicy('consistent_hash'), servers), servers);
    for (const { id } of servers) expect(before.filter((picked) => picked === id).length).toBeGreaterThan(50);
  });
});

describe.each(enginePolicySchema.options)('prefer_local with %s', (name) => {
  const [host, rack, zone, far] = [
    server('host', 9, 0),
    server('rack', 9, 1),
    server('zone', 9, 2),
    server('far', 0, 3),
  ];
  const all = [far, zone, rack, host];

  it('uses engines of this host, then of its rack, then of its zone, while they are free', () => {
    const policy = joined(choicePolicy(name, 'prefer_local'), all);
    for (const session of sessions.slice(0, 50)) {
      expect(policy.pick(session, all)).toBe(host);
      expect(policy.pick(session, [far, zone, rack])).toBe(rack);
      expect(policy.pick(session, [far, zone])).toBe(zone);
      expect(policy.pick(session, [far])).toBe(far);
    }
  });

  it('lets a session that was moved choose among all engines up to that distance, and no farther one', () => {
    const policy = joined(choicePolicy(name, 'prefer_local'), all);
    for (const session of sessions.slice(0, 50)) policy.assigned(session, rack);
    const picked = new Set(sessions.slice(0, 50).map((session) => policy.pick(session, all).id));
    expect([...picked].every((id) => id === 'host' || id === 'rack')).toBe(true);
    for (const session of sessions.slice(0, 50)) {
      policy.assigned(session, host);
      expect(policy.pick(session, all)).toBe(host);
    }
  });
});

it('the policy keeps a session on the engine of its rack, although an engine of the host is free again', () => {
  const [host, rack] = [server('host', 0, 0), server('rack', 2, 1)];
  const policy = joined(choicePolicy('least_in_flight', 'prefer_local'), [host, rack]);
  policy.assigned('ses_1', rack);
  expect(policy.pick('ses_1', [host, rack])).toBe(rack);
  expect(policy.pick('ses_2', [host, rack])).toBe(host);
});

it.each<[Distance, Partial<Place>, Partial<Place>]>([
  [1, { rack: 'r1' }, { rack: 'r1' }],
  [1, { rack: 'r1', zone: 'z1' }, { rack: 'r1' }],
  [1, { rack: 'r1', zone: 'z1' }, { rack: 'r1', zone: 'z1' }],
  [3, { rack: 'r1', zone: 'z1' }, { rack: 'r1', zone: 'z2' }],
  [2, { rack: 'r1', zone: 'z1' }, { rack: 'r2', zone: 'z1' }],
  [2, { zone: 'z1' }, { rack: 'r2', zone: 'z1' }],
  [3, { rack: 'r1' }, { rack: 'r2' }],
  [3, {}, {}],
  [3, {}, { rack: 'r1', zone: 'z1' }],
])('distanceBetween returns %d for %j and %j', (distance, one, other) => {
  const place = (fields: Partial<Place>): Place => ({ rack: null, zone: null, ...fields });
  expect(distanceBetween(place(one), place(other))).toBe(distance);
  expect(distanceBetween(place(other), place(one))).toBe(distance);
});

it('a pool compares the place of an engine with the place of the node', async () => {
  const specs = [specOf('far'), specOf('near', { place: { rack: 'r1', zone: null } })];
  const pools = await createEnginePools(specs, {
    clock: new VirtualClock(),
    locality: 'prefer_local',
    place: { rack: 'r1', zone: null },
    connect: async (spec) => new ToyEngine(spec.engine_id ?? ''),
  });
  for (const sessionId of sessions.slice(0, 20)) {
    expect((await pools.generate({ ...REQUEST, sessionId }, never())).engineId).toBe('near');
  }
  await pools.close();
});

it.each([
  ['http://localhost:8000', true],
  ['http://127.0.0.1:8000', true],
  ['http://127.8.9.1', true],
  ['http://127.0.0.10:8000', true],
  ['http://[::1]:8000/x', true],
  ['https://Box-3:8000', true],
  ['http://10.1.2.3:8000', true],
  ['http://10.1.2.30:8000', false],
  ['http://localhost.example.com', false],
  ['http://127.0.0.1.example.com', false],
])('isLocal(%s) returns %s', (url, local) => {
  expect(isLocal(url, new Set(['box-3', '10.1.2.3']))).toBe(local);
});
