import { VirtualClock } from '@floe-rl/core';
import { isTerminal } from '@floe-rl/core/protocol';
import type { HeartbeatReply, Lease, NodeInfo, SessionResult } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { runs } from '../../../../../test/effort.ts';
import { MemoryDatabase } from '../../../../../verify/control-plane/memory-store/database.ts';
import { MemoryStore } from '../../../../../verify/control-plane/memory-store/store.ts';
import { createRolloutServer, type RolloutServer } from '../../../src/rollout/index.ts';
import { type Answer, Caller, type Refusal } from '../call.ts';
import { MemoryBlobs } from '../memory-blobs.ts';
import { METRICS, summaryOf, task } from '../workbench.ts';

const RUNS = runs(25);
const LEASE_SECONDS = 10;
const NODES = ['n1', 'n2'];
const SESSIONS = 9;
const POOLS = { max_init_workers: 1, ready_size: 1, max_run_workers: 1, max_postrun_workers: 1 };
const CAPACITY = 4;

type Step =
  | { kind: 'register'; node: number; fresh: boolean; server: number }
  | { kind: 'lease'; process: number; slots: number; server: number }
  | { kind: 'heartbeat'; process: number; keep: number; server: number }
  | { kind: 'deliver'; lease: number; fails: boolean; server: number }
  | { kind: 'wait'; seconds: number }
  | { kind: 'sweep'; server: number }
  | { kind: 'drain'; node: number; server: number };

const at = fc.nat(1);
const any = fc.nat(100);
const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 2,
    arbitrary: fc.record({ kind: fc.constant('register'), node: at, fresh: fc.boolean(), server: at }),
  },
  {
    weight: 6,
    arbitrary: fc.record({
      kind: fc.constant('lease'),
      process: any,
      slots: fc.constantFrom(1, 2, 10_000),
      server: at,
    }),
  },
  { weight: 4, arbitrary: fc.record({ kind: fc.constant('heartbeat'), process: any, keep: fc.nat(15), server: at }) },
  { weight: 5, arbitrary: fc.record({ kind: fc.constant('deliver'), lease: any, fails: fc.boolean(), server: at }) },
  { weight: 4, arbitrary: fc.record({ kind: fc.constant('wait'), seconds: fc.constantFrom(1, 6, LEASE_SECONDS) }) },
  { weight: 4, arbitrary: fc.record({ kind: fc.constant('sweep'), server: at }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('drain'), node: at, server: at }) },
) as fc.Arbitrary<Step>;

/** Identifies a process that ran a node. The process may since have been replaced by a newer one, or suspended for a long time. */
type Process = { readonly node: string; readonly instance: string };
type Held = Process & { readonly lease: Lease };

/** Simulates two servers on one store, and nodes whose processes start, hang and die. */
class World {
  private readonly clock = new VirtualClock();
  private readonly database = new MemoryDatabase();
  private readonly blobs = new MemoryBlobs();
  private readonly servers: RolloutServer[] = [];
  private readonly callers: Caller[] = [];
  private readonly processes: Process[] = [];
  private readonly leases: Held[] = [];
  /** For each node, the process that registered last. */
  private readonly newest = new Map<string, string>();
  /** For each node, the instance of the process that holds the node id. */
  private readonly owner = new Map<string, string>();
  /** For each node, the processes that have registered after the owner and have made no other call yet, oldest first. */
  private readonly claims = new Map<string, readonly string[]>();
  private readonly accepted = new Set<string>();
  private sessionIds: string[] = [];

  async start(): Promise<void> {
    for (let i = 0; i < 2; i++) {
      const server = await createRolloutServer(
        { lease_seconds: LEASE_SECONDS, retry_backoff_seconds: 1, avoid_node_seconds: 2 },
        { store: new MemoryStore(this.database), blobs: this.blobs, clock: this.clock, validateTask: () => {} },
      );
      this.servers.push(server);
      this.callers.push(new Caller(server));
    }
    for (const trainer of ['a', 'b', 'c']) {
      const { session_ids } = await this.caller(0).submit(
        task({ trainer, num_samples: SESSIONS / 3, max_attempts: 3 }),
      );
      this.sessionIds.push(...session_ids);
    }
    for (const [node] of NODES.entries()) await this.run({ kind: 'register', node, fresh: true, server: 0 });
  }

  private caller(server: number): Caller {
    const caller = this.callers[server];
    if (caller === undefined) throw new Error('there are two servers');
    return caller;
  }

  async run(step: Step): Promise<void> {
    switch (step.kind) {
      case 'register':
        return this.register(step);
      case 'lease':
        return this.lease(step);
      case 'heartbeat':
        return this.heartbeat(step);
      case 'deliver':
        return this.deliver(step);
      case 'wait':
        return this.clock.advance(step.seconds * 1000);
      case 'sweep':
        return this.servers[step.server]?.sweep();
      case 'drain':
        await this.caller(step.server).call('DELETE', `/nodes/${NODES[step.node]}`);
    }
  }

  private async register({ node: index, fresh, server }: Step & { kind: 'register' }): Promise<void> {
    const node = NODES[index] ?? 'n1';
    const current = this.newest.get(node);
    const instance = fresh || current === undefined ? `${node}-${this.processes.length}` : current;
    const before = await this.caller(server).call<NodeInfo>('GET', `/nodes/${node}`);
    const body = { ...POOLS, node_id: node, instance };
    const { body: info } = await this.caller(server).call<NodeInfo>('POST', '/nodes/register', body);
    if (instance !== current) this.processes.push({ node, instance });
    this.newest.set(node, instance);
    const known = before.status === 200;
    if (!known) this.claims.delete(node);
    if (!known || this.owner.get(node) === instance) this.owner.set(node, instance);
    else this.claims.set(node, [...this.claimsOf(node).filter((one) => one !== instance), instance].slice(-8));
    // A registration alone does not take over the node id, so the sessions still belong to the earlier process.
    expect(info.leased_sessions).toBe(known ? before.body.leased_sessions : 0);
  }

  private async lease({ process: pick, slots, server }: Step & { kind: 'lease' }): Promise<void> {
    const process = this.pick(this.processes, pick);
    const body = { instance: process.instance, slots };
    const reply = await this.caller(server).call<{ leases: Lease[] } & Refusal>(
      'POST',
      `/nodes/${process.node}/lease`,
      body,
    );
    if (this.refusesStale(process, reply)) return;
    for (const lease of reply.body.leases) {
      const twice = this.leases.some(
        (one) => one.lease.session_id === lease.session_id && one.lease.epoch >= lease.epoch,
      );
      expect(twice, `session ${lease.session_id} was leased twice in epoch ${lease.epoch}`).toBe(false);
      this.leases.push({ ...process, lease });
    }
    const { body: info } = await this.caller(server).call<NodeInfo>('GET', `/nodes/${process.node}`);
    expect(info.leased_sessions).toBeLessThanOrEqual(CAPACITY);
  }

  private async heartbeat({ process: pick, keep, server }: Step & { kind: 'heartbeat' }): Promise<void> {
    const process = this.pick(this.processes, pick);
    const mine = this.leases.filter(
      ({ instance }, i) => instance === process.instance && ((keep >> (i % 4)) & 1) === 1,
    );
    const sessions = mine.map(({ lease: { session_id, epoch } }) => ({
      session_id,
      epoch,
      status: 'RUNNING',
      turns: 1,
      sampled_tokens: 0,
    }));
    const body = { instance: process.instance, metrics: METRICS, sessions };
    const path = `/nodes/${process.node}/heartbeat`;
    const reply = await this.caller(server).call<HeartbeatReply & Refusal>('POST', path, body);
    if (this.refusesStale(process, reply)) return;
    for (const { lease } of mine) {
      const now = await this.caller(server).session(lease.session_id);
      const lost = now.epoch !== lease.epoch;
      const isNamedToStop = reply.body.stop.some(
        (stop) => stop.session_id === lease.session_id && stop.epoch === lease.epoch,
      );
      expect(isNamedToStop).toBe(lost);
    }
  }

  private async deliver({ lease: pick, fails, server }: Step & { kind: 'deliver' }): Promise<void> {
    if (this.leases.length === 0) return;
    const { node, lease } = this.pick(this.leases, pick);
    const before = await this.caller(server).session(lease.session_id);
    const reply = await this.caller(server).deliver(node, summaryOf(lease, fails ? 'infra_error' : 'completed'));
    const current = before.epoch === lease.epoch && !isTerminal(before.status);
    if (reply.status === 200 && !reply.body.duplicate) {
      expect(current, 'a late result was taken').toBe(true);
      if (reply.body.requeued) return;
      expect(this.accepted.has(lease.session_id)).toBe(false);
      this.accepted.add(lease.session_id);
    } else if (reply.status !== 200) {
      expect(current, 'a result in time was refused').toBe(false);
      expect(['stale_epoch', 'conflict']).toContain(reply.body.error.code);
    }
  }

  private claimsOf(node: string): readonly string[] {
    return this.claims.get(node) ?? [];
  }

  /**
   * Returns whether, according to this simulation, another process has taken over the node id, so that the server must refuse the call.
   * Checks that the server refused the call exactly in that case. The first call of a newly registered process takes over the node id.
   */
  private refusesStale({ node, instance }: Process, reply: Answer<unknown>): boolean {
    if (reply.status === 404) return true;
    const claim = this.claimsOf(node).indexOf(instance);
    if (claim !== -1) {
      this.owner.set(node, instance);
      this.claims.set(node, this.claimsOf(node).slice(claim + 1));
    }
    const stale = this.owner.get(node) !== instance;
    expect(reply.status).toBe(stale ? 409 : 200);
    return stale;
  }

  private pick<T>(list: readonly T[], index: number): T {
    const one = list[index % list.length];
    if (one === undefined) throw new Error('there is nothing to pick from');
    return one;
  }

  /** Lets all leases expire and all sessions end, and checks that each session has exactly one result. */
  async settle(): Promise<void> {
    for (let round = 0; round < 8; round++) {
      this.clock.advance(60_000);
      await this.servers[round % 2]?.sweep();
      for (const [node] of NODES.entries()) await this.run({ kind: 'register', node, fresh: true, server: round % 2 });
      for (let i = 0; i < SESSIONS; i++) {
        await this.run({ kind: 'lease', process: this.processes.length - 1, slots: 9, server: i % 2 });
        await this.run({
          kind: 'deliver',
          lease: Math.max(0, this.leases.length - 1 - i),
          fails: false,
          server: i % 2,
        });
      }
    }
    for (let i = 0; i < this.leases.length; i++) await this.run({ kind: 'deliver', lease: i, fails: false, server: 0 });
    this.clock.advance(60_000);
    for (const server of this.servers) await server.sweep();
    const { body } = await this.caller(0).call<{ results: SessionResult[] }>('GET', '/rollout/results?limit=1000');
    const ids = body.results.map((result) => result.session_id);
    expect(new Set(ids).size).toBe(ids.length);
    expect([...ids].sort()).toEqual([...this.sessionIds].sort());
    for (const server of this.servers) await server.close();
  }
}

describe('the server', () => {
  it('leases no epoch of a session twice and accepts no late result, whatever processes and servers do', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 10, maxLength: 60 }), async (steps) => {
        const world = new World();
        await world.start();
        for (const one of steps) await world.run(one);
        await world.settle();
      }),
      { numRuns: RUNS },
    );
  }, 120_000);
});
