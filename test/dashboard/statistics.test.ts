import { describe, expect, it } from 'vitest';
import {
  differs,
  meanDifference,
  meanEstimate,
  shareDifference,
  shareEstimate,
} from '../../dashboard/src/statistics.ts';

describe('the estimates of the dashboard', () => {
  it("returns the interval of a mean by Student's distribution", () => {
    // 1, 2, 3, 4, 5: the sample's deviation is 1.5811, its standard error 0.7071, and the quantile for 4 degrees 2.7764.
    const estimate = meanEstimate({ count: 5, mean: 3, deviation: Math.sqrt(2) });
    expect(estimate?.value).toBe(3);
    expect(estimate?.low).toBeCloseTo(3 - 1.9633, 1);
    expect(estimate?.high).toBeCloseTo(3 + 1.9633, 1);
  });

  it('has no interval for one value, and no estimate for none', () => {
    expect(meanEstimate({ count: 1, mean: 0.5, deviation: 0 })).toEqual({ value: 0.5, low: null, high: null });
    expect(meanEstimate({ count: 0, mean: 0, deviation: 0 })).toBeNull();
    expect(shareEstimate(0, 0)).toBeNull();
  });

  it("returns the difference of means with Welch's interval", () => {
    // Two samples of 30 and 40 with sample deviations 2 and 3: standard error 0.5986, 67.2 degrees, quantile 1.9959.
    const first = { count: 30, mean: 10, deviation: 2 * Math.sqrt(29 / 30) };
    const second = { count: 40, mean: 12, deviation: 3 * Math.sqrt(39 / 40) };
    const difference = meanDifference(first, second);
    expect(difference?.value).toBe(2);
    expect(difference?.low).toBeCloseTo(2 - 1.1948, 3);
    expect(difference?.high).toBeCloseTo(2 + 1.1948, 3);
    expect(difference !== null && differs(difference)).toBe(true);
  });

  it("returns the limits of a share by Wilson's method", () => {
    const none = shareEstimate(0, 10);
    expect(none?.low).toBeCloseTo(0, 9);
    expect(none?.high).toBeCloseTo(0.2775, 4);
    const most = shareEstimate(81, 263);
    expect(most?.low).toBeCloseTo(0.2553, 4);
    expect(most?.high).toBeCloseTo(0.3662, 4);
  });

  it("returns the difference of shares by Newcombe's method", () => {
    // The first example of Newcombe (1998): 56 of 70 and 48 of 80 have the interval 0.0524 to 0.3339.
    const difference = shareDifference(shareEstimate(48, 80), shareEstimate(56, 70));
    expect(difference?.value).toBeCloseTo(0.2, 9);
    expect(difference?.low).toBeCloseTo(0.0524, 4);
    expect(difference?.high).toBeCloseTo(0.3339, 4);
  });
});
