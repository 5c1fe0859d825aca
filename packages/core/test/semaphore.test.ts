import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Semaphore } from '../src/semaphore.ts';

describe('Semaphore', () => {
  it('serves waiters in the order of their calls and never grants more than its size', async () => {
    const semaphore = new Semaphore(2);
    const order: number[] = [];
    const releases = [await semaphore.acquire(), await semaphore.acquire()];
    const waiting = [1, 2, 3].map(async (n) => {
      const release = await semaphore.acquire();
      order.push(n);
      return release;
    });
    expect(semaphore.free).toBe(0);
    expect(semaphore.waiting).toBe(3);
    releases[0]?.();
    (await waiting[0])?.();
    (await waiting[1])?.();
    await waiting[2];
    expect(order).toEqual([1, 2, 3]);
    expect(semaphore.inUse).toBe(2);
  });

  it('holds no permit for a waiter whose signal has aborted', async () => {
    const semaphore = new Semaphore(1);
    const release = await semaphore.acquire();
    const controller = new AbortController();
    const waiter = semaphore.acquire(controller.signal);
    controller.abort(new Error('gave up'));
    await expect(waiter).rejects.toThrow('gave up');
    release();
    expect(semaphore.free).toBe(1);
  });

  it('keeps its count through any order of acquiring, releasing twice and aborting', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.integer({ min: 1, max: 4 }),
        fc.array(fc.record({ kind: fc.constantFrom('acquire', 'release', 'abort'), pick: fc.nat(20) }), {
          maxLength: 60,
        }),
        async (size, steps) => {
          const semaphore = new Semaphore(size);
          const held: (() => void)[] = [];
          const pending: AbortController[] = [];
          for (const { kind, pick } of steps) {
            if (kind === 'acquire') {
              const controller = new AbortController();
              pending.push(controller);
              semaphore.acquire(controller.signal).then(
                (release) => held.push(release),
                () => undefined,
              );
            } else if (kind === 'release') {
              const release = held.splice(pick % Math.max(held.length, 1), 1)[0];
              release?.();
              release?.();
            } else {
              pending[pick % Math.max(pending.length, 1)]?.abort(new Error('gave up'));
            }
            await new Promise((resolve) => setImmediate(resolve));
            expect(semaphore.inUse).toBe(held.length);
            expect(semaphore.inUse).toBeLessThanOrEqual(size);
            if (semaphore.free > 0) expect(semaphore.waiting).toBe(0);
          }
        },
      ),
      { numRuns: 100 },
    );
  });
});
