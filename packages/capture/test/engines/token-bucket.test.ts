import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { TokenBucket } from '../../src/engines/token-bucket.ts';

describe('TokenBucket', () => {
  it('grows evenly and accumulates at most one second of its rate', () => {
    const bucket = new TokenBucket(600, 0);
    expect(bucket.waitMs(1, 0)).toBe(0);
    bucket.take(10, 0);
    expect(bucket.waitMs(1, 0)).toBeCloseTo(100);
    expect(bucket.waitMs(1, 60)).toBeCloseTo(40);
    bucket.take(0, 3_600_000);
    bucket.take(10, 3_600_000);
    expect(bucket.waitMs(1, 3_600_000)).toBeCloseTo(100);
  });

  it('lets a caller take more than its capacity and makes later callers wait for the debt', () => {
    const bucket = new TokenBucket(60_000, 0);
    expect(bucket.waitMs(50_000, 0)).toBe(0);
    bucket.take(50_000, 0);
    expect(bucket.waitMs(1, 0)).toBeCloseTo(49_001);
    bucket.take(-49_000, 0);
    expect(bucket.waitMs(1, 0)).toBeCloseTo(1);
  });

  it('stays empty until the given time', () => {
    const bucket = new TokenBucket(60, 0);
    bucket.emptyUntil(30_000, 0);
    expect(bucket.waitMs(1, 0)).toBeCloseTo(31_000);
    expect(bucket.waitMs(1, 30_500)).toBeCloseTo(500);
    expect(bucket.waitMs(1, 31_000)).toBe(0);
    bucket.emptyUntil(20_000, 31_000);
    expect(bucket.waitMs(1, 31_000)).toBeCloseTo(1_000);
  });

  it('rejects an allowance below one per minute', () => {
    expect(() => new TokenBucket(0, 0)).toThrow(RangeError);
    expect(() => new TokenBucket(Number.NaN, 0)).toThrow(RangeError);
  });

  it('never admits more per minute than its rate plus one second of burst', () => {
    const call = fc.record({ gapMs: fc.nat(4_000), amount: fc.integer({ min: 1, max: 5 }) });
    fc.assert(
      fc.property(fc.integer({ min: 60, max: 3_000 }), fc.array(call, { maxLength: 200 }), (perMinute, calls) => {
        const bucket = new TokenBucket(perMinute, 0);
        const taken: { atMs: number; amount: number }[] = [];
        let nowMs = 0;
        for (const { gapMs, amount } of calls) {
          nowMs += gapMs;
          nowMs += bucket.waitMs(amount, nowMs);
          bucket.take(amount, nowMs);
          taken.push({ atMs: nowMs, amount });
        }
        for (const [i, { atMs }] of taken.entries()) {
          const minute = taken.slice(i).filter((other) => other.atMs < atMs + 60_000);
          const sum = minute.reduce((total, other) => total + other.amount, 0);
          // The bound is the rate per minute, plus one second of burst, plus 5, the largest amount of one call. The 5 is needed because a
          // call may take its whole amount once the bucket is full. The 1e-6 allows for rounding errors.
          expect(sum).toBeLessThanOrEqual(perMinute + Math.max(1, perMinute / 60) + 5 + 1e-6);
        }
      }),
    );
  });
});
