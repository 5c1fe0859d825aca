import { parseAs, systemClock, VirtualClock } from '@floe-rl/core';
import { type Lease, leaseRequestSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import { rolloutConfigSchema } from '../../../../src/rollout/config.ts';
import { type ControlPlane, createControlPlane } from '../../../../src/rollout/control-plane.ts';
import { createRolloutServer, type RolloutServer } from '../../../../src/rollout/index.ts';
import { SqliteStore, type Store } from '../../../../src/store/index.ts';
import { PostgresStore } from '../../../../src/store/postgres/store.ts';
import { Caller } from '../../../rollout/call.ts';
import { InterposedStore } from '../../../rollout/interposed-store.ts';
import { MemoryBlobs } from '../../../rollout/memory-blobs.ts';
import { summaryOf, task } from '../../../rollout/workbench.ts';
import { postgresMissing, usePostgres } from '../../../store/postgres.ts';

const LEASE_MS = 10_000;
const HOLDERS = [
  ['another node', 'n2'],
  ['the same node', 'n1'],
] as const;
const HANDED_BACK = { error: { code: 'not_ready', message: 'shutting down', stage: null, details: {} } } as const;

describe('on SQLite', () => staleLeaseTests(async () => SqliteStore.open(':memory:')));

describeIf(postgresMissing(), 'on PostgreSQL', () => {
  const cluster = usePostgres();
  staleLeaseTests(async () => PostgresStore.open(await cluster().createDatabase(), { clock: systemClock }));
});

function staleLeaseTests(openStore: () => Promise<Store>): void {
  let clock: VirtualClock;
  let store: Store;
  let server: RolloutServer;
  let caller: Caller;
  /** The store of a second server, `plane`. Tests use it to let the first server make a change between two accesses of the second server. */
  let interposed: InterposedStore;
  let plane: ControlPlane;
  beforeEach(async () => {
    clock = new VirtualClock();
    store = await openStore();
    interposed = new InterposedStore(store);
    const config = { lease_seconds: LEASE_MS / 1000, avoid_node_seconds: 0 };
    const deps = { blobs: new MemoryBlobs(), clock, validateTask: () => {} };
    server = await createRolloutServer(config, { ...deps, store });
    plane = await createControlPlane(parseAs(rolloutConfigSchema, config, 'config'), { ...deps, store: interposed });
    caller = new Caller(server);
    for (const node of ['n1', 'n2']) await caller.register(node);
    await caller.submit(task());
  });
  afterEach(async () => {
    plane.close();
    await plane.finish();
    await server.close();
    await store.close();
  });

  async function leaseOne(nodeId: string): Promise<Lease> {
    const [lease] = await caller.lease(nodeId);
    if (lease === undefined) throw new Error('there was nothing to lease');
    return lease;
  }

  /** Lets the current lease expire, and leases the next epoch of the session to a node. */
  async function leaseNextEpoch(nodeId: string): Promise<Lease> {
    clock.advance(LEASE_MS);
    await server.sweep();
    return leaseOne(nodeId);
  }

  /** Requests a lease for node n1 over a connection that is closed when `disconnected` aborts. */
  async function leaseDisconnected(disconnected: AbortSignal): Promise<void> {
    const body = leaseRequestSchema.parse({ slots: 1 });
    await plane.handlers.lease({ id: 'n1', body, disconnected, reply: { type: () => {} } } as never);
  }

  /** Returns everything that is stored about a session. */
  function stored({ session_id: id, task_id }: Lease): Promise<unknown> {
    return store.read(async (tables) => ({
      session: await tables.sessions.get(id),
      task: await tables.tasks.get(task_id),
      deliveries: await tables.results.deliveriesOf(id),
      result: await tables.results.ofSession(id),
    }));
  }

  describe.each(HOLDERS)('an old epoch of a session whose next epoch %s holds', (_, holder) => {
    let old: Lease;
    let held: Lease;
    let before: unknown;
    const hold = async (): Promise<void> => {
      held = await leaseNextEpoch(holder);
      // Enough time passes that a heartbeat would renew the lease.
      clock.advance(LEASE_MS / 2);
      before = await stored(held);
    };

    it.each([
      ['a result', summaryOf],
      ['a session that is handed back', (lease: Lease) => summaryOf(lease, 'infra_error', HANDED_BACK)],
    ] as const)('delivers %s: it is refused with stale_epoch and changes nothing', async (_what, deliveryOf) => {
      old = await leaseOne('n1');
      await hold();
      expect(held).toMatchObject({ session_id: old.session_id, epoch: 2 });
      const refused = await caller.deliver('n1', deliveryOf(old));
      expect(refused).toMatchObject({
        status: 409,
        body: { error: { code: 'stale_epoch', details: { epoch: 1, current_epoch: 2 } } },
      });
      expect(await stored(held)).toEqual(before);
      expect(await caller.counters()).toMatchObject({ stale_results: 1 });
    });

    it('is listed by a heartbeat: it is to be stopped because its lease is lost, and nothing changes', async () => {
      old = await leaseOne('n1');
      await hold();
      const { stop } = await caller.heartbeat('n1', [old], 'POSTRUN', 7);
      expect(stop).toEqual([{ session_id: old.session_id, epoch: 1, reason: 'lease_lost' }]);
      expect(await stored(held)).toEqual(before);
    });

    it('is listed by a heartbeat after the session has ended in its next epoch: it is to be stopped', async () => {
      old = await leaseOne('n1');
      await hold();
      await caller.deliver(holder, summaryOf(held));
      before = await stored(held);
      const { stop } = await caller.heartbeat('n1', [old]);
      expect(stop).toEqual([{ session_id: old.session_id, epoch: 1, reason: 'lease_lost' }]);
      expect(await stored(held)).toEqual(before);
    });

    it('repeats the result that ended it: the repeat is acknowledged and changes nothing', async () => {
      old = await leaseOne('n1');
      const failed = summaryOf(old, 'infra_error', HANDED_BACK);
      await caller.deliver('n1', failed);
      held = await leaseOne(holder);
      before = await stored(held);
      const repeat = await caller.deliver('n1', failed);
      expect(repeat).toMatchObject({ status: 200, body: { duplicate: true, requeued: true } });
      expect(await stored(held)).toEqual(before);
    });

    it('is returned because its node has disconnected: nothing changes', async () => {
      const disconnected = new AbortController();
      interposed.afterNext('transaction', async () => {
        disconnected.abort();
        await hold();
      });
      await leaseDisconnected(disconnected.signal);
      expect(held).toMatchObject({ epoch: 2 });
      expect(await stored(held)).toEqual(before);
    });
  });

  it('a heartbeat that lists the old and the next epoch of a session renews only the next one', async () => {
    const old = await leaseOne('n1');
    const next = await leaseNextEpoch('n1');
    for (const listed of [
      [old, next],
      [next, old],
    ]) {
      clock.advance(LEASE_MS - 1);
      const { stop } = await caller.heartbeat('n1', listed, 'RUNNING', 3);
      expect(stop).toEqual([{ session_id: old.session_id, epoch: 1, reason: 'lease_lost' }]);
      await server.sweep();
      expect(await caller.session(next.session_id)).toMatchObject({ status: 'RUNNING', epoch: 2, turns: 3 });
    }
  });

  it('a lease that is returned before it expires puts its session back into the queue with its attempt', async () => {
    const disconnected = new AbortController();
    interposed.afterNext('transaction', async () => disconnected.abort());
    await leaseDisconnected(disconnected.signal);
    expect(await leaseOne('n2')).toMatchObject({ attempt: 1, epoch: 2 });
  });

  describe('an expired lease that a server has found', () => {
    it.each<[string, (lease: Lease) => Promise<unknown>]>([
      ['another server has taken it back', () => server.sweep()],
      ['another server has taken it back and leased the session to another node', () => leaseNextEpoch('n2')],
      ['another server has taken it back and leased the session to the same node', () => leaseNextEpoch('n1')],
      ['its node has renewed it', (lease) => caller.heartbeat('n1', [lease])],
      ['its node has delivered the result', (lease) => caller.deliver('n1', summaryOf(lease))],
    ])('is not taken back when %s since', async (_, happen) => {
      const lease = await leaseOne('n1');
      clock.advance(LEASE_MS);
      let since: unknown;
      interposed.afterNext('read', async () => {
        await happen(lease);
        since = await stored(lease);
      });
      await plane.sweep();
      expect(since).toBeDefined();
      expect(await stored(lease)).toEqual(since);
    });

    it('is taken back once when two servers sweep at the same time', async () => {
      const lease = await leaseOne('n1');
      clock.advance(LEASE_MS);
      await Promise.all([server.sweep(), plane.sweep()]);
      expect(await caller.session(lease.session_id)).toMatchObject({ status: 'QUEUED', epoch: 2, attempt: 2 });
    });
  });
}
