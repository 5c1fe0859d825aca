import { VirtualClock } from '@floe-rl/core';
import type { Lease, Outcome, ResultsPage, SessionView, TaskRequestInput } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { runs } from '../../../../../test/effort.ts';
import { createRolloutServer, type RolloutServer } from '../../../src/rollout/index.ts';
import { SqliteStore } from '../../../src/store/index.ts';
import { Caller } from '../call.ts';
import { MemoryBlobs } from '../memory-blobs.ts';
import { summaryOf, task } from '../workbench.ts';

const LEASE_SECONDS = 10;
const RUNS = runs(25);

const OUTCOMES_TRIED: readonly Outcome[] = ['completed', 'completed', 'agent_error', 'infra_error', 'no_completions'];

type Step =
  | { kind: 'lease'; slots: number }
  | { kind: 'result' | 'partial'; pick: number; outcome: number }
  | { kind: 'cancelSession' | 'cancelTask'; pick: number }
  | { kind: 'wait'; seconds: number }
  | { kind: 'restart' };

const pick = fc.nat({ max: 40 });
const outcome = fc.nat({ max: OUTCOMES_TRIED.length - 1 });
const step = fc.oneof(
  { weight: 6, arbitrary: fc.record({ kind: fc.constant('lease'), slots: fc.integer({ min: 1, max: 4 }) }) },
  { weight: 9, arbitrary: fc.record({ kind: fc.constant('result'), pick, outcome }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('partial'), pick, outcome }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('cancelSession'), pick }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('cancelTask'), pick }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('wait'), seconds: fc.constantFrom(1, 5, LEASE_SECONDS) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('restart') }) },
) as fc.Arbitrary<Step>;

const group: fc.Arbitrary<Partial<TaskRequestInput> & { num_samples: number }> = fc
  .integer({ min: 1, max: 5 })
  .chain((samples) =>
    fc.record({
      num_samples: fc.constant(samples),
      max_attempts: fc.integer({ min: 1, max: 2 }),
      refill: fc.nat({ max: 3 }),
      early_stop_min_usable_sessions: fc.option(fc.integer({ min: 1, max: samples })),
      deadline_seconds: fc.option(fc.constant(25)),
    }),
  );

class Groups {
  readonly clock = new VirtualClock();
  private readonly store = SqliteStore.open(':memory:');
  private readonly blobs = new MemoryBlobs();
  private server: RolloutServer | null = null;
  private current: Caller | null = null;
  private readonly leases: Lease[] = [];

  async start(): Promise<void> {
    await this.server?.close();
    this.server = await createRolloutServer(
      { lease_seconds: LEASE_SECONDS, retry_backoff_seconds: 0 },
      { store: this.store, blobs: this.blobs, clock: this.clock, validateTask: () => {} },
    );
    this.current = new Caller(this.server);
    await this.caller.register('n1');
  }

  get caller(): Caller {
    if (this.current === null) throw new Error('not started');
    return this.current;
  }

  async run(step: Step): Promise<void> {
    switch (step.kind) {
      case 'lease':
        this.leases.push(...(await this.caller.lease('n1', step.slots)));
        return;
      case 'result':
      case 'partial': {
        const lease = this.leases[step.pick % Math.max(1, this.leases.length)];
        if (lease === undefined) return;
        const summary = summaryOf(lease, OUTCOMES_TRIED[step.outcome]);
        if (step.kind === 'result') await this.caller.deliver('n1', summary);
        else expect((await this.caller.deliverPartial('n1', summary)).status).toBe(200);
        return;
      }
      case 'cancelSession': {
        const lease = this.leases[step.pick % Math.max(1, this.leases.length)];
        if (lease !== undefined) await this.caller.call('DELETE', `/sessions/${lease.session_id}`);
        return;
      }
      case 'cancelTask':
        await this.caller.call('DELETE', `/rollout/task/t${step.pick % 2}`);
        return;
      case 'wait':
        this.clock.advance(step.seconds * 1000);
        return this.server?.sweep();
      case 'restart':
        return this.start();
    }
  }

  /**
   * Checks that every requested sample and every refill is either open or has exactly one result, and that the task's counters match these
   * results. Returns whether the task has ended.
   */
  async check(id: string, asked: Partial<TaskRequestInput> & { num_samples: number }): Promise<boolean> {
    const status = await this.caller.taskStatus(id);
    const { body } = await this.caller.call<{ sessions: SessionView[] }>('GET', `/tasks/${id}/sessions`);
    const page = await this.caller.call<ResultsPage>('GET', '/rollout/results?limit=1000');
    const { sessions } = body;
    const ended = sessions.filter((session) => session.summary !== null);
    const results = page.body.results.filter((result) => result.task_id === id);
    const { group } = status;
    expect(sessions.map((session) => session.sample_index)).toEqual(sessions.map((_, index) => index));
    expect(sessions).toHaveLength(asked.num_samples + group.refilled);
    expect(status.total_sessions).toBe(sessions.length);
    expect(group.open + ended.length).toBe(sessions.length);
    expect(status.completed_sessions).toBe(ended.length);
    expect(results.map((result) => result.session_id).sort()).toEqual(ended.map((one) => one.session_id).sort());
    const usable = ended.filter((session) => session.summary?.unusable === null).length;
    expect(group.usable).toBe(usable);
    expect(Object.values(group.unusable).reduce((sum, count) => sum + count, 0)).toBe(ended.length - usable);
    const lost = ended.length - usable - (group.unusable.cancelled ?? 0);
    expect(group.refilled).toBeLessThanOrEqual(Math.min(lost, asked.refill ?? 0));
    const least = asked.early_stop_min_usable_sessions ?? asked.num_samples;
    expect(usable).toBeLessThanOrEqual(least);
    if (status.status === 'running') {
      expect(group.refilled).toBe(Math.min(lost, asked.refill ?? 0));
      expect(usable).toBeLessThan(least);
      expect(group.open).toBeGreaterThan(0);
    } else {
      expect(group.open).toBe(0);
    }
    if (group.early_stopped) expect(status.status).toBe('completed');
    return status.status !== 'running';
  }

  async close(): Promise<void> {
    await this.server?.close();
    await this.store.close();
  }
}

describe('the server', () => {
  it('neither loses nor duplicates samples, however results, losses, cancellations, refills and early stops interleave', async () => {
    const steps = fc.array(fc.tuple(step, fc.option(step)), { minLength: 5, maxLength: 30 });
    await fc.assert(
      fc.asyncProperty(fc.tuple(group, group), steps, async (asked, pairs) => {
        const groups = new Groups();
        await groups.start();
        for (const [i, one] of asked.entries()) await groups.caller.submit(task({ ...one, task_id: `t${i}` }));
        for (const [first, beside] of pairs) {
          // A step that restarts the server must not run concurrently with another step; any two other steps may.
          const alone = first.kind === 'restart' || beside?.kind === 'restart';
          if (alone || beside === null) {
            await groups.run(first);
            if (beside !== null) await groups.run(beside);
          } else {
            await Promise.all([groups.run(first), groups.run(beside)]);
          }
          for (const [i, one] of asked.entries()) await groups.check(`t${i}`, one);
        }
        // Ten rounds suffice for all sessions to end, because a session has at most two attempts and is refilled at most three times.
        for (let round = 0; round < 10; round++) {
          await groups.run({ kind: 'lease', slots: 100 });
          await groups.run({ kind: 'wait', seconds: 60 });
        }
        for (const [i, one] of asked.entries()) expect(await groups.check(`t${i}`, one)).toBe(true);
        await groups.close();
      }),
      { numRuns: RUNS },
    );
  }, 120_000);
});
