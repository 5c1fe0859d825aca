import { parseAs, VirtualClock } from '@floe-rl/core';
import {
  type HeartbeatReply,
  heartbeatSchema,
  type Lease,
  type NodeInfo,
  type RolloutStatus,
} from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { rolloutConfigSchema } from '../../../src/rollout/config.ts';
import { type ControlPlane, createControlPlane } from '../../../src/rollout/control-plane.ts';
import type { Store } from '../../../src/store/index.ts';
import { type Answer, Caller, type Refusal } from '../call.ts';
import { METRICS, REGISTRATION, type Running, summaryOf, task, Workbench } from '../workbench.ts';

let bench: Workbench;
let clock: VirtualClock;
let running: Running;
let caller: Caller;
beforeEach(async () => {
  clock = new VirtualClock();
  bench = await Workbench.create(clock);
  running = await bench.server({ avoid_node_seconds: 0, node_timeout_seconds: 10 });
  caller = new Caller(running.server);
});
afterEach(() => bench.dispose());

/** A simulated process that runs a node, with the calls that it makes to a server. */
class NodeProcess {
  readonly nodeId: string;
  readonly instance: string;
  readonly caller: Caller;

  constructor(instance: string, nodeId = 'n1', by: Caller = caller) {
    this.nodeId = nodeId;
    this.instance = instance;
    this.caller = by;
  }

  async register(fields: object = {}): Promise<Answer<NodeInfo & Refusal>> {
    const body = { ...REGISTRATION, node_id: this.nodeId, instance: this.instance, ...fields };
    return this.caller.call('POST', '/nodes/register', body);
  }

  /** Registers the process and makes one further call, so that the process takes over the node id. */
  async start(): Promise<NodeInfo> {
    await this.register();
    await this.beat([]);
    return (await this.caller.call<NodeInfo>('GET', `/nodes/${this.nodeId}`)).body;
  }

  async lease(slots = 1): Promise<Answer<{ leases: Lease[] } & Refusal>> {
    return this.caller.call('POST', `/nodes/${this.nodeId}/lease`, { instance: this.instance, slots });
  }

  async leases(slots = 1): Promise<Lease[]> {
    return (await this.lease(slots)).body.leases;
  }

  async beat(held: readonly Lease[], fields: object = {}): Promise<Answer<HeartbeatReply & Refusal>> {
    const sessions = held.map(({ session_id, epoch }) => ({
      session_id,
      epoch,
      status: 'RUNNING',
      turns: 0,
      sampled_tokens: 0,
    }));
    const body = { instance: this.instance, metrics: METRICS, sessions, ...fields };
    return this.caller.call('POST', `/nodes/${this.nodeId}/heartbeat`, body);
  }
}

async function status(by: Caller = caller): Promise<RolloutStatus> {
  return (await by.call<RolloutStatus>('GET', '/rollout/status')).body;
}

describe('the server', () => {
  it('requeues the sessions of an older process when a new one takes over, and refuses its results and calls', async () => {
    const older = new NodeProcess('p1');
    await older.register();
    await caller.submit(task({ num_samples: 2 }));
    const held = await older.leases(2);
    const newer = new NodeProcess('p2');
    expect(await newer.start()).toMatchObject({ takeovers: 1, leased_sessions: 0 });
    for (const { session_id } of held) {
      expect(await caller.session(session_id)).toMatchObject({ status: 'QUEUED', epoch: 2, attempt: 2 });
    }
    const [late] = held;
    if (late === undefined) throw new Error('two sessions were leased');
    expect((await caller.deliver('n1', summaryOf(late))).body.error.code).toBe('stale_epoch');
    for (const refused of [await older.lease(), await older.beat(held)]) {
      expect(refused).toMatchObject({
        status: 409,
        body: { error: { code: 'conflict', details: { field: 'instance' } } },
      });
      expect(refused.body.error.message).toContain('give each its own node id');
    }
    expect((await newer.leases(5)).map((lease) => lease.epoch)).toEqual([2, 2]);
    expect((await status()).counters).toMatchObject({ takeovers: 1, stale_processes: 2, retries: 2, stale_results: 1 });
  });

  it('requeues the sessions that a node reports as lost, and no other', async () => {
    const node = new NodeProcess('p1');
    await node.register();
    await caller.submit(task({ num_samples: 2 }));
    const [lost, kept] = await node.leases(2);
    if (lost === undefined || kept === undefined) throw new Error('two sessions were leased');
    const entries = [
      { session_id: lost.session_id, epoch: lost.epoch },
      { session_id: kept.session_id, epoch: kept.epoch + 1 },
      { session_id: 'ses_unknown', epoch: 1 },
    ];
    // A report that arrives twice changes nothing more.
    for (const _ of [1, 2]) expect((await node.beat([kept], { lost: entries })).body.stop).toEqual([]);
    expect(await caller.session(lost.session_id)).toMatchObject({ status: 'QUEUED', epoch: 2, attempt: 2 });
    expect(await caller.session(kept.session_id)).toMatchObject({ status: 'RUNNING', epoch: 1, attempt: 1 });
    const refused = await new NodeProcess('p0').beat([], { lost: [{ session_id: kept.session_id, epoch: 1 }] });
    expect(refused.body.error.code).toBe('conflict');
    expect(await caller.session(kept.session_id)).toMatchObject({ status: 'RUNNING', epoch: 1 });
  });

  it('ends a session without attempts left when its node is taken over', async () => {
    await new NodeProcess('p1').register();
    const { task_id } = await caller.submit(task({ max_attempts: 1 }));
    const [lease] = await new NodeProcess('p1').leases();
    await new NodeProcess('p2').start();
    const session = await caller.session(lease?.session_id ?? '');
    expect(session.summary).toMatchObject({
      outcome: 'infra_error',
      reward: null,
      error: { code: 'peer_unreachable', message: expect.stringContaining('took over node n1') },
    });
    expect((await caller.taskStatus(task_id)).status).toBe('completed');
  });

  it('keeps the sessions of a process that registers repeatedly', async () => {
    const node = new NodeProcess('p1');
    await node.register();
    await caller.submit(task());
    const held = await node.leases();
    expect((await node.register()).body).toMatchObject({ takeovers: 0, leased_sessions: 1 });
    expect((await node.beat(held)).body.stop).toEqual([]);
    expect((await caller.deliver('n1', summaryOf(held[0] as Lease))).status).toBe(200);
  });

  it('leases sessions to a drained node after it has registered as a new process', async () => {
    const drained = new NodeProcess('p1');
    await drained.register();
    await caller.call('DELETE', '/nodes/n1');
    await caller.submit(task());
    expect(await drained.leases()).toEqual([]);
    const restarted = new NodeProcess('p2');
    await restarted.register();
    expect(await restarted.leases()).toHaveLength(1);
    expect((await caller.call<NodeInfo>('GET', '/nodes/n1')).body).toMatchObject({ draining: false });
  });

  it('shows why a node refuses sessions, and prefers other nodes, until it accepts them', async () => {
    const node = new NodeProcess('p1');
    await node.register();
    await node.beat([], { refuses: 'the disk is full' });
    expect((await status()).nodes).toMatchObject([{ node_id: 'n1', healthy: true, refuses: 'the disk is full' }]);
    await caller.submit(task());
    expect((await status()).bottleneck).toMatchObject({
      name: 'nodes',
      why: expect.stringContaining('the disk is full'),
    });
    await node.beat([]);
    expect((await status()).nodes).toMatchObject([{ refuses: null }]);
  });

  it('does not take over for a delayed registration of a dead process', async () => {
    const living = new NodeProcess('p3');
    await living.register();
    await caller.submit(task());
    const held = await living.leases();
    // The process p2 has died, and its registration arrives late.
    await new NodeProcess('p2').register();
    expect((await living.beat(held)).body.stop).toEqual([]);
    // The late registration of the dead process p1 arrives between the registration of p4 and the first call of p4. It must not keep p4
    // from taking over the node id.
    const next = new NodeProcess('p4');
    await next.register();
    await new NodeProcess('p1').register();
    expect((await next.lease()).status).toBe(200);
    expect((await status()).counters).toMatchObject({ takeovers: 1, stale_processes: 0 });
    expect((await living.beat(held)).body.error.code).toBe('conflict');
  });

  it('gives the id to the process that registered last when two start together', async () => {
    const [first, last] = [new NodeProcess('p1'), new NodeProcess('p2')];
    await new NodeProcess('p0').start();
    await first.register();
    await last.register();
    expect((await last.beat([])).status).toBe(200);
    expect((await first.beat([])).body.error.code).toBe('conflict');
    expect((await last.beat([])).status).toBe(200);
  });

  it('ends the held calls of an older process when it is replaced', async () => {
    const url = await running.listen();
    const older = new NodeProcess('p1');
    await older.register();
    const hold = (path: string, body: object) =>
      fetch(`${url}/nodes/n1/${path}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ instance: 'p1', wait_seconds: 10, ...body }),
      });
    const held = Promise.all([hold('heartbeat', { metrics: METRICS, sessions: [] }), hold('lease', { slots: 1 })]);
    // The virtual clock does not advance, so the two calls never reach the end of their `wait_seconds`. The server answers them only
    // because a new process of the node registers.
    await clientsWait(2);
    await new NodeProcess('p2').start();
    expect((await held).map((reply) => reply.status)).toEqual([409, 409]);
  });

  /**
   * Waits until `count` clients are connected. The server may receive the request of a client later, which makes no difference to the test.
   */
  async function clientsWait(count: number): Promise<void> {
    const open = (): Promise<number> =>
      new Promise((resolve) => running.server.app.server.getConnections((_, number) => resolve(number)));
    while ((await open()) < count) await new Promise(setImmediate);
  }

  it('is not harmed by a suspended node that wakes', async () => {
    const paused = new NodeProcess('p1', 'n1');
    const other = new NodeProcess('q1', 'n2');
    await paused.register();
    await other.register();
    await caller.submit(task());
    const [lost] = await paused.leases();
    if (lost === undefined) throw new Error('a session was queued');
    clock.advance(31_000);
    await running.server.sweep();
    const [again] = await other.leases();
    expect(again).toMatchObject({ session_id: lost.session_id, epoch: 2 });
    const woken = await paused.beat([lost]);
    expect(woken.body.stop).toEqual([{ session_id: lost.session_id, epoch: 1, reason: 'lease_lost' }]);
    expect(await caller.session(lost.session_id)).toMatchObject({
      node_id: 'n2',
      epoch: 2,
      turns: 0,
      status: 'LEASED',
    });
    expect((await caller.deliver('n1', summaryOf(lost))).body.error.code).toBe('stale_epoch');
    expect((await status()).counters).toMatchObject({ leases_expired: 1, stale_results: 1 });
  });

  it('never leases more to a node than its stages can hold, whatever it requests', async () => {
    const node = new NodeProcess('p1');
    const small = { max_init_workers: 2, ready_size: 1, max_run_workers: 2, max_postrun_workers: 1 };
    await node.register(small);
    await caller.submit(task({ num_samples: 50 }));
    const first = await node.leases(10_000);
    expect(first).toHaveLength(6);
    expect(await node.leases(10_000)).toEqual([]);
    await caller.deliver('n1', summaryOf(first[0] as Lease));
    expect(await node.leases(10_000)).toHaveLength(1);
  });

  it('refuses impossible pool sizes, negative slots and negative progress, and names the field', async () => {
    const node = new NodeProcess('p1');
    for (const [fields, path] of [
      [{ max_run_workers: 1_000_000 }, 'max_run_workers'],
      [{ ready_size: -1 }, 'ready_size'],
    ] as const) {
      const refused = await node.register(fields);
      expect(refused).toMatchObject({ status: 422, body: { error: { code: 'schema_violation' } } });
      expect(refused.body.error.message).toContain(path);
    }
    await node.register();
    expect((await node.lease(-5)).body.error.message).toContain('slots');
    const session = { session_id: 's', epoch: 1, status: 'RUNNING', turns: 2 ** 40, sampled_tokens: -1 };
    const refused = await node.beat([], { sessions: [session] });
    expect(refused).toMatchObject({ status: 422 });
    expect(refused.body.error.message).toContain('turns');
  });

  it('answers a lease request that waits for capacity when a session of the node ends', async () => {
    const url = await running.listen();
    const node = new NodeProcess('p1');
    await node.register({ max_init_workers: 1, ready_size: 0, max_run_workers: 1, max_postrun_workers: 1 });
    await caller.submit(task({ num_samples: 4 }));
    const held = await node.leases(3);
    const waiting = fetch(`${url}/nodes/n1/lease`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ instance: 'p1', slots: 1, wait_seconds: 10 }),
    });
    await clientsWait(1);
    await caller.deliver('n1', summaryOf(held[0] as Lease));
    expect(((await (await waiting).json()) as { leases: Lease[] }).leases).toHaveLength(1);
  });

  it('sends the stop of a cancelled session that the node has not listed once, and again if it lists it', async () => {
    const node = new NodeProcess('p1');
    await node.register();
    await caller.submit(task());
    const [lease] = await node.leases();
    if (lease === undefined) throw new Error('a session was queued');
    await caller.call('DELETE', `/sessions/${lease.session_id}`);
    const stop = [{ session_id: lease.session_id, epoch: 1, reason: 'cancelled' }];
    expect((await node.beat([])).body.stop).toEqual(stop);
    expect((await node.beat([])).body.stop).toEqual([]);
    expect((await node.beat([lease])).body.stop).toEqual(stop);
  });

  it('accepts heartbeats at different servers as if one had received them', async () => {
    const second = new Caller((await replica()).server);
    const node = new NodeProcess('p1');
    const there = new NodeProcess('p1', 'n1', second);
    await node.register();
    await caller.submit(task({ num_samples: 2 }));
    const [kept, cancelled] = await node.leases(2);
    if (kept === undefined || cancelled === undefined) throw new Error('two sessions were queued');
    await caller.call('DELETE', `/sessions/${cancelled.session_id}`);
    const stop = [{ session_id: cancelled.session_id, epoch: 1, reason: 'cancelled' }];
    for (const process of [node, there, node, there]) {
      clock.advance(20_000);
      expect((await process.beat([kept, cancelled])).body.stop).toEqual(stop);
    }
    await second.call('DELETE', '/nodes/n1');
    // The order to stop is sent once more although the node does not list the session, because the lease could still have been on its way
    // to the node.
    expect((await node.beat([kept])).body).toMatchObject({ stop, draining: true });
    expect((await there.beat([kept])).body).toMatchObject({ stop: [], draining: true });
    expect(await caller.session(kept.session_id)).toMatchObject({ status: 'RUNNING', epoch: 1 });
    expect((await second.deliver('n1', summaryOf(kept))).status).toBe(200);
  });

  it('takes a lease back once when two servers sweep concurrently', async () => {
    const second = await replica();
    const node = new NodeProcess('p1');
    await node.register();
    await caller.submit(task({ num_samples: 3 }));
    const held = await node.leases(3);
    clock.advance(31_000);
    await Promise.all([running.server.sweep(), second.server.sweep(), running.server.sweep()]);
    for (const { session_id } of held) {
      expect(await caller.session(session_id)).toMatchObject({ status: 'QUEUED', epoch: 2, attempt: 2 });
    }
  });

  /** Starts another server on the same store. */
  async function replica(): Promise<Running> {
    const { store } = await bench.open();
    return bench.server({ avoid_node_seconds: 0 }, { store, blobs: (await bench.open()).blobs });
  }

  describe('that holds heartbeats', () => {
    let store: Store;
    let plane: ControlPlane;
    let node: NodeProcess;
    beforeEach(async () => {
      const opened = await bench.open();
      store = opened.store;
      const config = parseAs(rolloutConfigSchema, {}, 'config');
      plane = await createControlPlane(config, { ...opened, clock, validateTask: () => {} });
      node = new NodeProcess('p1');
      await node.register();
    });
    afterEach(() => plane.close());

    /** Sends a heartbeat that may be held, over a connection that is closed when `disconnected` aborts. */
    function beat(held: readonly Lease[], disconnected: AbortSignal): Promise<HeartbeatReply> {
      const progress = { status: 'RUNNING', turns: 0, sampled_tokens: 0 };
      const sessions = held.map(({ session_id, epoch }) => ({ session_id, epoch, ...progress }));
      const body = heartbeatSchema.parse({ instance: 'p1', metrics: METRICS, sessions, wait_seconds: 5 });
      return plane.handlers.heartbeat({ id: 'n1', body, disconnected } as never) as Promise<HeartbeatReply>;
    }

    it('sends an order to stop immediately if the node disconnected before it received the order', async () => {
      await caller.submit(task());
      const [lease] = await node.leases();
      if (lease === undefined) throw new Error('a session was queued');
      await caller.call('DELETE', `/sessions/${lease.session_id}`);
      const stop = [{ session_id: lease.session_id, epoch: 1, reason: 'cancelled' }];
      expect((await beat([lease], AbortSignal.abort())).stop).toEqual(stop);
      // The virtual clock does not advance, so a heartbeat that is held is never answered.
      expect((await beat([lease], new AbortController().signal)).stop).toEqual(stop);
    });

    it('does not use the store while it holds one', async () => {
      const transaction = vi.spyOn(store, 'transaction');
      const read = vi.spyOn(store, 'read');
      let isAnswered = false;
      const answered = beat([], new AbortController().signal).finally(() => {
        isAnswered = true;
      });
      while (!isAnswered) {
        clock.advance(1_000);
        await new Promise(setImmediate);
      }
      expect((await answered).stop).toEqual([]);
      expect(read).not.toHaveBeenCalled();
      expect(transaction).toHaveBeenCalledTimes(1);
    });
  });

  it('shows a silent node as unhealthy, and as healthy once it is back', async () => {
    const node = new NodeProcess('p1');
    await node.register();
    clock.advance(10_001);
    expect((await status()).nodes).toMatchObject([{ node_id: 'n1', healthy: false }]);
    await node.beat([]);
    expect((await status()).nodes).toMatchObject([{ node_id: 'n1', healthy: true }]);
  });

  it('changes only the time of the last heartbeat when a heartbeat reports nothing new', async () => {
    const node = new NodeProcess('p1');
    await node.register();
    await caller.submit(task());
    const held = await node.leases();
    await node.beat(held);
    const before = await caller.session(held[0]?.session_id ?? '');
    clock.advance(2_000);
    await node.beat(held);
    expect(await caller.session(held[0]?.session_id ?? '')).toEqual(before);
    const [seen] = (await status()).nodes;
    expect(Date.parse(seen?.last_heartbeat ?? '')).toBe(clock.nowMs());
  });

  it('answers a heartbeat that lists a session twice, an unknown and an ended one with the stops', async () => {
    const node = new NodeProcess('p1');
    await node.register();
    await caller.submit(task({ num_samples: 2 }));
    const [one, ended] = await node.leases(2);
    if (one === undefined || ended === undefined) throw new Error('two sessions were queued');
    await caller.deliver('n1', summaryOf(ended));
    const stranger = { ...one, session_id: 'nobody' };
    const reply = await node.beat([one, one, ended, stranger]);
    expect(reply.body.stop).toEqual([{ session_id: 'nobody', epoch: 1, reason: 'lease_lost' }]);
  });
});
