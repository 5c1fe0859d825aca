import { VirtualClock } from '@floe-rl/core';
import type { Lease } from '@floe-rl/core/schema';
import { afterEach, describe, expect, it } from 'vitest';
import { Caller } from './call.ts';
import { type Running, summaryOf, task, Workbench } from './workbench.ts';

const LEASE_SECONDS = 30;

/** The clock of a process that can be suspended. During a suspension the monotonic time advances but no timer fires. */
class StoppableClock extends VirtualClock {
  private missedMs = 0;

  override monotonicMs(): number {
    return super.monotonicMs() + this.missedMs;
  }

  stopFor(ms: number): void {
    this.missedMs += ms;
  }
}

const benches: Workbench[] = [];
afterEach(async () => {
  for (const bench of benches.splice(0).reverse()) await bench.dispose();
});

async function server(
  clock: VirtualClock,
  beside?: Workbench,
): Promise<{ running: Running; caller: Caller; bench: Workbench }> {
  const bench = await Workbench.create(clock);
  benches.push(bench);
  const config = { lease_seconds: LEASE_SECONDS, avoid_node_seconds: 0 };
  const running = await bench.server(config, beside === undefined ? {} : await beside.open());
  return { running, caller: new Caller(running.server), bench };
}

async function leaseOne(caller: Caller): Promise<Lease> {
  const [lease] = await caller.lease('n1');
  if (lease === undefined) throw new Error('a session was queued');
  return lease;
}

describe('the service time', () => {
  it('takes no lease back when a server wakes that was suspended for longer than a lease', async () => {
    const clock = new StoppableClock();
    const { running, caller } = await server(clock);
    await caller.register('n1');
    await caller.submit(task());
    const lease = await leaseOne(caller);
    clock.stopFor(10 * 60_000);
    await running.server.sweep();
    expect(await caller.session(lease.session_id)).toMatchObject({ status: 'LEASED', epoch: 1 });
    expect((await caller.heartbeat('n1', [lease])).stop).toEqual([]);
    expect((await caller.deliver('n1', summaryOf(lease))).status).toBe(200);
  });

  it('advances during many short suspensions only by what the server could have observed', async () => {
    const clock = new StoppableClock();
    const { running, caller } = await server(clock);
    await caller.register('n1');
    await caller.submit(task());
    const lease = await leaseOne(caller);
    for (let i = 0; i < 20; i++) {
      clock.stopFor(LEASE_SECONDS * 1000);
      await running.server.sweep();
    }
    expect((await caller.session(lease.session_id)).epoch).toBe(1);
    clock.advance(LEASE_SECONDS * 1000);
    await running.server.sweep();
    expect((await caller.session(lease.session_id)).epoch).toBe(2);
  });

  it('lets a lagging server grant leases that are as long for the others', async () => {
    const fast = new VirtualClock();
    const slow = new VirtualClock();
    const ahead = await server(fast);
    const behind = await server(slow, ahead.bench);
    await ahead.caller.register('n1');
    await ahead.caller.submit(task());
    // The server on the clock `slow` is suspended for an hour, so its clock stands still. The server `ahead` runs, and stores the service
    // time with each sweep.
    fast.advance(60 * 60_000);
    await ahead.running.server.sweep();
    const lease = await leaseOne(behind.caller);
    fast.advance((LEASE_SECONDS - 1) * 1000);
    await ahead.running.server.sweep();
    expect((await ahead.caller.session(lease.session_id)).epoch).toBe(1);
    await behind.caller.heartbeat('n1', [lease]);
    fast.advance((LEASE_SECONDS - 1) * 1000);
    await ahead.running.server.sweep();
    expect((await ahead.caller.session(lease.session_id)).epoch).toBe(1);
    fast.advance(1_000);
    await ahead.running.server.sweep();
    expect((await ahead.caller.session(lease.session_id)).epoch).toBe(2);
  });

  it('does not expire leases on a server that wakes after the others', async () => {
    const fast = new VirtualClock();
    const slow = new VirtualClock();
    const ahead = await server(fast);
    const behind = await server(slow, ahead.bench);
    await ahead.caller.register('n1');
    await ahead.caller.submit(task());
    fast.advance(60 * 60_000);
    await ahead.running.server.sweep();
    const lease = await leaseOne(ahead.caller);
    await behind.running.server.sweep();
    slow.advance((LEASE_SECONDS - 1) * 1000);
    await behind.running.server.sweep();
    expect((await behind.caller.session(lease.session_id)).epoch).toBe(1);
    slow.advance(1_000);
    await behind.running.server.sweep();
    expect((await behind.caller.session(lease.session_id)).epoch).toBe(2);
  });
});
