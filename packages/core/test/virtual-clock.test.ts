import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../src/virtual-clock.ts';

describe('VirtualClock', () => {
  it('fires timers by due time, then by order of scheduling, and never a cancelled one', () => {
    const timer = fc.record({ delayMs: fc.integer({ min: -2, max: 30 }), cancelled: fc.boolean() });
    fc.assert(
      fc.property(fc.array(timer, { maxLength: 300 }), fc.integer({ min: 0, max: 35 }), (timers, untilMs) => {
        const clock = new VirtualClock();
        const fired: number[] = [];
        const cancels = timers.map(({ delayMs }, index) => clock.schedule(delayMs, () => fired.push(index)));
        for (const [index, { cancelled }] of timers.entries()) if (cancelled) cancels[index]?.();
        clock.advance(untilMs);
        const expected = timers
          .map(({ delayMs, cancelled }, index) => ({ dueMs: Math.max(delayMs, 0), cancelled, index }))
          .filter(({ dueMs, cancelled }) => !cancelled && dueMs <= untilMs)
          .sort((a, b) => a.dueMs - b.dueMs || a.index - b.index);
        expect(fired).toEqual(expected.map(({ index }) => index));
        expect(clock.monotonicMs()).toBe(untilMs);
      }),
    );
  });

  it('fires timers that become due while it advances, each at its due time', () => {
    const clock = new VirtualClock();
    const at: number[] = [];
    const repeat = (): void => {
      at.push(clock.monotonicMs());
      clock.schedule(10, repeat);
    };
    clock.schedule(5, repeat);
    clock.advance(30);
    expect(at).toEqual([5, 15, 25]);
  });

  it('moves from timer to timer with fireNext', () => {
    const clock = new VirtualClock();
    clock.schedule(7, () => {});
    clock.schedule(9, () => {})();
    expect([clock.fireNext(), clock.monotonicMs()]).toEqual([true, 7]);
    expect([clock.fireNext(), clock.monotonicMs()]).toEqual([false, 7]);
  });

  it('drops cancelled timers from memory', () => {
    const clock = new VirtualClock();
    for (let i = 0; i < 10_000; i++) clock.schedule(1e9, () => {})();
    expect((clock as unknown as { timers: unknown[] }).timers.length).toBeLessThan(200);
  });
});
