import { describe, expect, it } from 'vitest';
import { Attempt } from '../../../src/gateway/session/attempt.ts';
import { LeaseFence } from '../../../src/gateway/session/lease-fence.ts';
import { leaseSchema, runtimeSpecSchema } from '../../../src/schema/index.ts';
import { StoppableClock } from '../stoppable-clock.ts';

const LEASE_SECONDS = 60;

function node() {
  const clock = new StoppableClock();
  const lease = leaseSchema.parse({
    session_id: 'ses_1',
    task_id: 'tsk_1',
    sample_index: 0,
    attempt: 1,
    epoch: 1,
    lease_seconds: LEASE_SECONDS,
    queued_ms: 0,
    task: { instruction: 'x', agent: { harness: 'shell', custom_shell: 'true' } },
  });
  const attempt = new Attempt(lease, runtimeSpecSchema.parse({}), clock, () => {});
  const woken: number[] = [];
  const fence = new LeaseFence({
    clock,
    live: () => [attempt],
    beatMs: () => 5_000,
    onWake: (pausedMs) => void woken.push(pausedMs),
  });
  fence.start();
  attempt.renewal = fence.now();
  return { clock, attempt, fence, woken };
}

describe('a process that stood still', () => {
  it('for longer than the lease stops its sessions before anything else of it runs', () => {
    const { clock, attempt, fence } = node();
    clock.advance(3_000);
    clock.standStill(61_000);
    // No timer has fired yet: what leaves the node asks first.
    fence.check();
    expect(attempt.stopReason).toBe('lease_lost');
  });

  it('hears of it from its own timer too, and tells that it is awake', () => {
    const { clock, attempt, woken } = node();
    clock.standStill(70_000);
    clock.advance(500);
    expect(attempt.stopReason).toBe('lease_lost');
    expect(woken).toHaveLength(1);
  });

  it('for a shorter time goes on, and asks the server at once', () => {
    const { clock, attempt, fence, woken } = node();
    clock.standStill(30_000);
    fence.check();
    expect(attempt.stopReason).toBeNull();
    expect(woken).toHaveLength(1);
  });

  it('several times between two renewals is judged by all of them', () => {
    const { clock, attempt, fence } = node();
    for (let i = 0; i < 3; i++) {
      clock.standStill(25_000);
      fence.check();
      clock.advance(500);
    }
    expect(attempt.stopReason).toBe('lease_lost');
  });

  it('goes on when its lease was renewed after the pause', () => {
    const { clock, attempt, fence } = node();
    clock.standStill(50_000);
    fence.check();
    attempt.renewal = fence.now();
    clock.standStill(50_000);
    fence.check();
    expect(attempt.stopReason).toBeNull();
  });
});

describe('a lease that arrives', () => {
  it('after a pause that was longer than itself is not begun', () => {
    const { clock, attempt, fence } = node();
    const asked = fence.now();
    clock.advance(2_000);
    clock.standStill(61_000);
    attempt.renewal = fence.arrived(asked);
    expect(fence.hasExpired(attempt)).toBe(true);
  });

  it('after a long wait is as good as new', () => {
    const { clock, attempt, fence } = node();
    const asked = fence.now();
    clock.advance(600_000);
    attempt.renewal = fence.arrived(asked);
    expect(fence.hasExpired(attempt)).toBe(false);
  });
});

describe('a server that is away', () => {
  it('for hours is no reason to end a session', () => {
    const { clock, attempt } = node();
    clock.advance(7_200_000);
    expect(attempt.stopReason).toBeNull();
  });

  it('is none either when the process has stood still meanwhile', () => {
    const { clock, attempt, fence } = node();
    clock.advance(600_000);
    clock.standStill(70_000);
    fence.check();
    expect(attempt.stopReason).toBeNull();
  });
});
