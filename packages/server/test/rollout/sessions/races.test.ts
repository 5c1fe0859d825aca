import { VirtualClock } from '@floe-rl/core';
import type { Lease, Outcome, SessionResult, SessionView, TaskStatus } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { runs } from '../../../../../test/effort.ts';
import { createRolloutServer } from '../../../src/rollout/index.ts';
import { SqliteStore } from '../../../src/store/index.ts';
import { Caller } from '../call.ts';
import { MemoryBlobs } from '../memory-blobs.ts';
import { summaryOf, task } from '../workbench.ts';

const LEASE_SECONDS = 10;
const NODES = ['n1', 'n2'];
const RUNS = runs(60);

type Step =
  | { kind: 'lease'; node: number; slots: number }
  | { kind: 'heartbeat'; node: number; keep: number }
  | { kind: 'result'; pick: number; outcome: Outcome }
  | { kind: 'repeat'; pick: number }
  | { kind: 'cancel'; pick: number }
  | { kind: 'cancelTask'; pick: number }
  | { kind: 'wait'; seconds: number }
  | { kind: 'restart' };

const index = fc.nat({ max: 50 });
const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({ kind: fc.constant('lease'), node: fc.nat(1), slots: fc.integer({ min: 1, max: 3 }) }),
  },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('heartbeat'), node: fc.nat(1), keep: fc.nat(7) }) },
  {
    weight: 6,
    arbitrary: fc.record({
      kind: fc.constant('result'),
      pick: index,
      outcome: fc.constantFrom<Outcome>('completed', 'agent_timeout', 'infra_error', 'engine_error', 'cancelled'),
    }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('repeat'), pick: index }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('cancel'), pick: index }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('cancelTask'), pick: index }) },
  { weight: 4, arbitrary: fc.record({ kind: fc.constant('wait'), seconds: fc.constantFrom(1, 6, LEASE_SECONDS) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('restart') }) },
) as fc.Arbitrary<Step>;

/** Makes random calls to a server and records everything that the server acknowledges. */
class Simulation {
  readonly clock = new VirtualClock();
  private readonly store = SqliteStore.open(':memory:');
  private readonly blobs = new MemoryBlobs();
  private current: Awaited<ReturnType<typeof createRolloutServer>> | null = null;
  private callerOrNull: Caller | null = null;
  readonly taskIds: string[] = [];
  readonly sessionIds: string[] = [];
  /** Every lease that a node ever got. The simulation also delivers results with leases that expired long ago. */
  readonly leases: { node: string; lease: Lease }[] = [];
  readonly delivered: { node: string; lease: Lease; outcome: Outcome }[] = [];
  /**
   * Every final outcome that a reply of the server contained. They are checked at the end of the simulation, because replies may arrive out
   * of order.
   */
  private readonly seen: { sessionId: string; outcome: Outcome }[] = [];
  private readonly accepted: string[] = [];
  readonly epochs = new Map<string, number>();

  async start(): Promise<void> {
    await this.current?.close();
    this.current = await createRolloutServer(
      { lease_seconds: LEASE_SECONDS },
      { store: this.store, blobs: this.blobs, clock: this.clock, validateTask: () => {} },
    );
    this.callerOrNull = new Caller(this.current);
    for (const node of NODES) await this.caller.register(node);
  }

  get caller(): Caller {
    if (this.callerOrNull === null) throw new Error('not started');
    return this.callerOrNull;
  }

  async submit(samples: number): Promise<void> {
    const reply = await this.caller.submit(task({ num_samples: samples, max_attempts: 2 }));
    this.taskIds.push(reply.task_id);
    this.sessionIds.push(...reply.session_ids);
  }

  async run(step: Step): Promise<void> {
    switch (step.kind) {
      case 'lease':
        return this.lease(NODES[step.node] ?? 'n1', step.slots);
      case 'heartbeat':
        return this.heartbeat(NODES[step.node] ?? 'n1', step.keep);
      case 'result': {
        const held = this.leases[step.pick % Math.max(1, this.leases.length)];
        if (held !== undefined) await this.deliver({ ...held, outcome: step.outcome });
        return;
      }
      case 'repeat': {
        const earlier = this.delivered[step.pick % Math.max(1, this.delivered.length)];
        if (earlier !== undefined) await this.deliver(earlier);
        return;
      }
      case 'cancel':
        return this.cancel(this.sessionIds[step.pick % this.sessionIds.length] ?? '');
      case 'cancelTask':
        return this.cancelTask(this.taskIds[step.pick % this.taskIds.length] ?? '');
      case 'wait':
        this.clock.advance(step.seconds * 1000);
        return this.current?.sweep();
      case 'restart':
        return this.start();
    }
  }

  private async lease(node: string, slots: number): Promise<void> {
    for (const lease of await this.caller.lease(node, slots)) {
      expect(lease.epoch).toBeGreaterThan(this.epochs.get(lease.session_id) ?? 0);
      this.epochs.set(lease.session_id, lease.epoch);
      this.leases.push({ node, lease });
    }
  }

  private async heartbeat(node: string, keep: number): Promise<void> {
    const mine = this.leases.filter((held, i) => held.node === node && (i & keep) !== 0).map((held) => held.lease);
    const reply = await this.caller.heartbeat(node, mine);
    for (const stop of reply.stop) if (stop.reason === 'cancelled') this.see(stop.session_id, 'cancelled');
  }

  async deliver(delivery: { node: string; lease: Lease; outcome: Outcome }): Promise<void> {
    const { node, lease, outcome } = delivery;
    const reply = await this.caller.deliver(node, summaryOf(lease, outcome));
    if (reply.status !== 200) {
      expect(['stale_epoch', 'cancelled', 'conflict']).toContain(reply.body.error.code);
      return;
    }
    if (reply.body.requeued) return;
    this.see(lease.session_id, outcome === 'cancelled' ? 'infra_error' : outcome);
    if (reply.body.duplicate) return;
    this.accepted.push(lease.session_id);
    this.delivered.push(delivery);
  }

  private async cancel(sessionId: string): Promise<void> {
    const { body } = await this.caller.call<SessionView>('DELETE', `/sessions/${sessionId}`);
    expect(body.summary).not.toBeNull();
    if (body.summary !== null) this.see(sessionId, body.summary.outcome);
  }

  private async cancelTask(taskId: string): Promise<void> {
    const { body } = await this.caller.call<TaskStatus>('DELETE', `/rollout/task/${taskId}`);
    expect(body.completed_sessions).toBe(body.total_sessions);
    for (const result of body.results) this.see(result.session_id, result.outcome);
  }

  private see(sessionId: string, outcome: Outcome): void {
    this.seen.push({ sessionId, outcome });
  }

  /** Lets all sessions end, then checks that their results match everything that the server had acknowledged. */
  async settle(): Promise<void> {
    for (let round = 0; round < 4; round++) {
      this.clock.advance(60_000);
      await this.current?.sweep();
      await this.caller.lease('n1', 100);
    }
    this.clock.advance(60_000);
    await this.current?.sweep();
    const { body } = await this.caller.call<{ results: SessionResult[] }>('GET', '/rollout/results?limit=1000');
    const ids = body.results.map((result) => result.session_id);
    expect([...ids].sort()).toEqual([...this.sessionIds].sort());
    const cursors = body.results.map((result) => result.cursor ?? 0);
    expect(cursors).toEqual([...cursors].sort((a, b) => a - b));
    for (const result of body.results) {
      expect(result.reward).toBe(result.outcome === 'completed' ? 1 : null);
    }
    const final = new Map(body.results.map((result) => [result.session_id, result.outcome]));
    for (const { sessionId, outcome } of this.seen) expect(final.get(sessionId)).toBe(outcome);
    expect(new Set(this.accepted).size).toBe(this.accepted.length);
    const known = new Set(this.seen.map((one) => one.sessionId));
    for (const [sessionId, outcome] of final) if (!known.has(sessionId)) expect(outcome).toBe('infra_error');
    await this.current?.close();
    await this.store.close();
  }
}

describe('the server', () => {
  it('ends each session once, as promised, and never completes a cancelled one, in whatever order calls arrive', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(fc.tuple(step, fc.option(step)), { minLength: 5, maxLength: 40 }), async (steps) => {
        const simulation = new Simulation();
        await simulation.start();
        await simulation.submit(3);
        await simulation.submit(2);
        for (const [first, beside] of steps) {
          // A step that restarts the server must not run concurrently with another step; any two other steps may.
          const alone = first.kind === 'restart' || beside?.kind === 'restart';
          if (alone || beside === null) {
            await simulation.run(first);
            if (beside !== null) await simulation.run(beside);
          } else {
            await Promise.all([simulation.run(first), simulation.run(beside)]);
          }
        }
        await simulation.settle();
      }),
      { numRuns: RUNS },
    );
  });

  it('prefers a cancellation that arrives while the bytes of the result are being stored', async () => {
    const store = SqliteStore.open(':memory:');
    const blobs = new MemoryBlobs();
    const clock = new VirtualClock();
    const server = await createRolloutServer({}, { store, blobs, clock, validateTask: () => {} });
    const caller = new Caller(server);
    await caller.register('n1');
    await caller.submit(task());
    const [lease] = await caller.lease('n1');
    if (lease === undefined) throw new Error('a session was queued');
    blobs.beforePut = async () => {
      await caller.call('DELETE', `/sessions/${lease.session_id}`);
    };
    expect(await caller.deliver('n1', summaryOf(lease))).toMatchObject({ body: { error: { code: 'cancelled' } } });
    expect((await caller.session(lease.session_id)).summary?.outcome).toBe('cancelled');
    await server.close();
    await store.close();
  });
});
