import { parseAs, settleAll, VirtualClock } from '@floe-rl/core';
import {
  type HeartbeatReply,
  heartbeatSchema,
  type LeaseReply,
  leaseRequestSchema,
  nodeRegistrationSchema,
  taskRequestSchema,
} from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { MemoryDatabase } from '../../../../../verify/control-plane/memory-store/database.ts';
import { MemoryStore } from '../../../../../verify/control-plane/memory-store/store.ts';
import { rolloutConfigSchema } from '../../../src/rollout/config.ts';
import { type ControlPlane, createControlPlane } from '../../../src/rollout/control-plane.ts';
import type { RouteName } from '../../../src/rollout/http/api.ts';
import type { Store, StoreTables } from '../../../src/store/index.ts';
import { MemoryBlobs } from '../memory-blobs.ts';
import { METRICS, REGISTRATION, task } from '../workbench.ts';

const NODES = 1_000;

/** A store that counts its accesses. */
class CountingStore extends MemoryStore {
  accesses = 0;

  override transaction<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    this.accesses++;
    return super.transaction(work);
  }
}

let clock: VirtualClock;
let database: MemoryDatabase;
let store: CountingStore;
let plane: ControlPlane;
beforeEach(async () => {
  clock = new VirtualClock();
  database = new MemoryDatabase();
  store = new CountingStore(database);
  plane = await planeOn(store);
});
afterEach(() => plane.close());

function planeOn(on: Store): Promise<ControlPlane> {
  const config = parseAs(rolloutConfigSchema, {}, 'config');
  return createControlPlane(config, { store: on, blobs: new MemoryBlobs(), clock, validateTask: () => {} });
}

const nameOf = (index: number): string => `node-${index}`;
const everyNode = Array.from({ length: NODES }, (_, index) => nameOf(index));

async function call(name: RouteName, id: string, body: unknown, at = plane): Promise<unknown> {
  const reply = { header: () => reply, type: () => reply };
  const disconnected = new AbortController().signal;
  const handle = at.handlers[name] as (one: unknown) => Promise<unknown>;
  return handle({ id, query: {}, body, disconnected, reply, request: { headers: {} } });
}

function register(id: string, instance = 'p1', fields: object = {}): Promise<unknown> {
  const body = nodeRegistrationSchema.parse({ ...REGISTRATION, ...fields, node_id: id, instance });
  return call('registerNode', id, body);
}

async function lease(id: string, { slots = 1, wait = 20, instance = 'p1' } = {}): Promise<string[]> {
  const body = leaseRequestSchema.parse({ instance, slots, wait_seconds: wait });
  const { leases } = JSON.parse(String(await call('lease', id, body))) as LeaseReply;
  return leases.map((one) => one.session_id);
}

function beat(id: string, fields: object = {}): Promise<HeartbeatReply> {
  const body = heartbeatSchema.parse({ instance: 'p1', metrics: METRICS, sessions: [], ...fields });
  return call('heartbeat', id, body) as Promise<HeartbeatReply>;
}

const submit = (samples: number, at = plane): Promise<unknown> =>
  call('submitTask', '', taskRequestSchema.parse(task({ num_samples: samples })), at);

/** Resolves when the server has done all work that it can do at the present time of the virtual clock. */
async function settle(): Promise<void> {
  for (let quiet = 0, before = -1; quiet < 3; quiet = store.accesses === before ? quiet + 1 : 0) {
    before = store.accesses;
    await new Promise(setImmediate);
    await database.idle();
  }
}

/** Lets every node request leases, and returns the requests, which the server holds. */
async function waitingNodes(slots = 1): Promise<Promise<string[]>[]> {
  await settleAll(everyNode.map((id) => register(id)));
  const held = everyNode.map((id) => lease(id, { slots }));
  await settle();
  store.accesses = 0;
  return held;
}

describe('a server whose thousand nodes wait for sessions', () => {
  it('uses the store about once a second while nothing happens', async () => {
    await waitingNodes();
    for (let second = 0; second < 10; second++) {
      clock.advance(1_000);
      await settle();
    }
    expect(store.accesses).toBeLessThanOrEqual(10);
  });

  it('gives a new session to one node at the cost of a few claims', async () => {
    const held = await waitingNodes();
    await submit(1);
    await settle();
    expect(store.accesses).toBeLessThanOrEqual(6);
    clock.advance(20_000);
    expect((await settleAll(held)).flat()).toHaveLength(1);
  });

  it('leases as many sessions as the nodes have asked for, at the cost of about one claim for each node', async () => {
    const held = await waitingNodes(4);
    await submit(4 * NODES + 5);
    await settle();
    expect(store.accesses).toBeLessThanOrEqual(NODES + 20);
    const leased = await settleAll(held);
    expect(leased.every((one) => one.length === 4)).toBe(true);
    expect(new Set(leased.flat()).size).toBe(4 * NODES);
  });

  it('passes a session on to a node with room when the nodes before it are full', async () => {
    for (const id of ['full-1', 'full-2', 'free']) {
      await register(id, 'p1', { max_init_workers: 1, ready_size: 0, max_run_workers: 1, max_postrun_workers: 1 });
    }
    await submit(6);
    for (const id of ['full-1', 'full-2']) expect(await lease(id, { slots: 3, wait: 0 })).toHaveLength(3);
    const full = [lease('full-1'), lease('full-2')];
    const free = lease('free');
    await settle();
    await submit(1);
    expect(await free).toHaveLength(1);
    clock.advance(20_000);
    expect(await settleAll(full)).toEqual([[], []]);
  });

  it('finds a session whose announcement was lost', async () => {
    const held = await waitingNodes();
    const other = new MemoryStore(database);
    other.announce = () => {};
    const second = await planeOn(other);
    await submit(1, second);
    second.close();
    await settle();
    clock.advance(1_000);
    expect(await Promise.race(held)).toHaveLength(1);
  });

  it('lets a request that is called at the end of its wait pass the call on', async () => {
    await register('a');
    await register('b');
    const first = lease('a', { wait: 0.5 });
    const second = lease('b');
    await settle();
    clock.advance(500);
    void submit(1);
    expect([...(await first), ...(await second)]).toHaveLength(1);
  });
});

describe('a server whose thousand nodes send heartbeats', () => {
  it('uses the store once for each, however long it holds them', async () => {
    await settleAll(everyNode.map((id) => register(id)));
    await settle();
    store.accesses = 0;
    const held = everyNode.map((id) => beat(id, { wait_seconds: 5 }));
    await settle();
    for (let second = 0; second < 5; second++) {
      clock.advance(1_000);
      await settle();
    }
    await settleAll(held);
    expect(store.accesses).toBe(NODES);
  });

  it('lets each of them report its progress every 5 s, and the nodes of a small cluster whenever they want', async () => {
    await settleAll(everyNode.map((id) => register(id)));
    expect((await beat(nameOf(0))).report_ms).toBeUndefined();
    await settleAll(everyNode.map((id) => beat(id)));
    expect((await beat(nameOf(0))).report_ms).toBe(5_000);
    // A minute later, only one node is still alive.
    clock.advance(61_000);
    await beat(nameOf(0));
    expect((await beat(nameOf(0))).report_ms).toBeUndefined();
  });
});

describe('a thousand nodes that restart at once', () => {
  it('cost a few accesses to the store each, and get new sessions', async () => {
    const held = await waitingNodes();
    await submit(NODES);
    await settleAll(held);
    await settle();
    store.accesses = 0;
    await settleAll(everyNode.map((id) => register(id, 'p2')));
    const again = await settleAll(everyNode.map((id) => lease(id, { instance: 'p2' })));
    expect(again.flat()).toHaveLength(NODES);
    // Each node registers, is refused once, takes over its node id in two accesses, and claims sessions. Some claims come before the sessions
    // are back in the queue.
    expect(store.accesses).toBeLessThan(8 * NODES);
  });
});

describe('nonsense from a node', () => {
  it('is refused when it asks for a million slots, and limited to its own stages when it asks for ten thousand', async () => {
    expect(leaseRequestSchema.safeParse({ slots: 1_000_000 }).success).toBe(false);
    await register('n', 'p1', { max_init_workers: 2, ready_size: 3, max_run_workers: 4, max_postrun_workers: 1 });
    await submit(100);
    expect(await lease('n', { slots: 10_000, wait: 0 })).toHaveLength(10);
  });
});
