import { describe, expect, it } from 'vitest';
import { compare, isWorse, readFigure } from '../../../bench/compare/figures.ts';

describe('a figure of two commits', () => {
  it('is the median of the ratios of its pairs, and their spread', () => {
    // The third pair ran while the machine was slow, which does not change its ratio.
    expect(compare('lower', [10, 10, 100], [11, 12, 120])).toEqual({
      base: 10,
      head: 12,
      ratio: 1.2,
      spread: [1.1, 1.2],
    });
  });

  it('is a cost: a rate that falls has a ratio above 1', () => {
    expect(compare('higher', [100, 100], [50, 50])).toMatchObject({ ratio: 2, spread: [2, 2] });
  });

  it('throws without a pair', () => {
    expect(() => compare('lower', [], [])).toThrow(RangeError);
  });

  it('is worse only above the bound, and when every pair got worse', () => {
    const figure = (ratio: number, least: number) => ({ base: 1, head: 1, ratio, spread: [least, 2] as const });
    expect(isWorse(figure(1.11, 1.01), 0.1)).toBe(true);
    expect(isWorse(figure(1.1, 1.01), 0.1)).toBe(false);
    expect(isWorse(figure(1.11, 0.99), 0.1)).toBe(false);
  });
});

describe('the figures of a bench', () => {
  it('are read by the names of their keys', () => {
    expect(readFigure({ cases: { small_c1: { cpu_us: 3 } } }, 'cases.small_c1.cpu_us')).toBe(3);
  });

  it.each([{}, null, { cases: null }, { cases: { small_c1: 'text' } }])('are null when %j lacks them', (json) => {
    expect(readFigure(json, 'cases.small_c1')).toBeNull();
  });
});
