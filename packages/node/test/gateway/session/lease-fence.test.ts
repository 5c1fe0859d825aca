import { leaseSchema, runtimeSpecSchema } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { Attempt } from '../../../src/gateway/session/attempt.ts';
import { LeaseFence } from '../../../src/gateway/session/lease-fence.ts';
import { SuspendableClock } from '../suspendable-clock.ts';

const LEASE_SECONDS = 60;

/**
 * Creates a running attempt with a newly renewed lease, and a `LeaseFence`, which stops the attempt if the lease expires while the clock is
 * suspended.
 */
function fencedAttempt() {
  const clock = new SuspendableClock();
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

describe('LeaseFence, after the process was suspended', () => {
  it('stops a session whose lease expired before any timer runs', () => {
    const { clock, attempt, fence } = fencedAttempt();
    clock.advance(3_000);
    clock.suspend(61_000);
    // No timer has fired yet. Every delivery calls `check` first, so this call must stop the session.
    fence.check();
    expect(attempt.stopReason).toBe('lease_lost');
  });

  it('stops the session from its own timer and reports the pause', () => {
    const { clock, attempt, woken } = fencedAttempt();
    clock.suspend(70_000);
    clock.advance(500);
    expect(attempt.stopReason).toBe('lease_lost');
    expect(woken).toHaveLength(1);
  });

  it('keeps the session and reports the pause when it was shorter than the lease', () => {
    const { clock, attempt, fence, woken } = fencedAttempt();
    clock.suspend(30_000);
    fence.check();
    expect(attempt.stopReason).toBeNull();
    expect(woken).toHaveLength(1);
  });

  it('adds up several pauses between two renewals', () => {
    const { clock, attempt, fence } = fencedAttempt();
    for (let i = 0; i < 3; i++) {
      clock.suspend(25_000);
      fence.check();
      clock.advance(500);
    }
    expect(attempt.stopReason).toBe('lease_lost');
  });

  it('keeps a session whose lease was renewed after the pause', () => {
    const { clock, attempt, fence } = fencedAttempt();
    clock.suspend(50_000);
    fence.check();
    attempt.renewal = fence.now();
    clock.suspend(50_000);
    fence.check();
    expect(attempt.stopReason).toBeNull();
  });
});

describe('LeaseFence.renewalOnArrival', () => {
  it('counts a pause since the request against the lease', () => {
    const { clock, attempt, fence } = fencedAttempt();
    const requested = fence.now();
    clock.advance(2_000);
    clock.suspend(61_000);
    attempt.renewal = fence.renewalOnArrival(requested);
    expect(fence.hasExpired(attempt)).toBe(true);
  });

  it('does not count the time for which the server held the request', () => {
    const { clock, attempt, fence } = fencedAttempt();
    const requested = fence.now();
    clock.advance(600_000);
    attempt.renewal = fence.renewalOnArrival(requested);
    expect(fence.hasExpired(attempt)).toBe(false);
  });
});

describe('LeaseFence, while the server is unreachable', () => {
  it('ends no session, even after hours', () => {
    const { clock, attempt } = fencedAttempt();
    clock.advance(7_200_000);
    expect(attempt.stopReason).toBeNull();
  });

  it('ends no session even when the process was suspended in the meantime', () => {
    const { clock, attempt, fence } = fencedAttempt();
    clock.advance(600_000);
    clock.suspend(70_000);
    fence.check();
    expect(attempt.stopReason).toBeNull();
  });
});
