import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { backoffMs, jitteredBackoffMs } from '../src/backoff.ts';

const backoff = { baseMs: 100, maxMs: 5_000 };

describe('backoffMs', () => {
  it('doubles the pause with each failure up to the longest one', () => {
    expect([1, 2, 3, 4, 5, 6, 7, 8].map((failures) => backoffMs(backoff, failures))).toEqual([
      100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000,
    ]);
  });

  it('stays finite after any number of failures', () => {
    expect(backoffMs(backoff, 1e9)).toBe(5_000);
  });
});

describe('jitteredBackoffMs', () => {
  it('shortens the pause by less than half and never lengthens it', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 100 }),
        fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
        (failures, drawn) => {
          const pauseMs = jitteredBackoffMs(backoff, failures, () => drawn);
          expect(pauseMs).toBeGreaterThanOrEqual(backoffMs(backoff, failures) / 2);
          expect(pauseMs).toBeLessThanOrEqual(backoffMs(backoff, failures));
        },
      ),
    );
  });
});
