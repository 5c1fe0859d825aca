import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { StagePools } from '../../../src/gateway/node/stage-pools.ts';

const never = new AbortController().signal;
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe('StagePools', () => {
  it('leases nothing that could not wait in READY', async () => {
    const pools = new StagePools({ init: 8, ready: 2, run: 1, postrun: 1 });
    expect(pools.admissible()).toBe(3);
    const leave = await Promise.all([pools.enterInit(never), pools.enterInit(never), pools.enterInit(never)]);
    expect(pools.admissible()).toBe(0);
    await pools.enterRun(leave[0], never);
    expect(pools.admissible()).toBe(0);
    expect(pools.metrics()).toMatchObject({ init_inflight: 2, run_inflight: 1, ready_depth: 0 });
  });

  it('runs INIT only for a free RUN worker when READY has no places', async () => {
    const pools = new StagePools({ init: 4, ready: 0, run: 1, postrun: 1 });
    expect(pools.admissible()).toBe(1);
    const release = await pools.enterRun(await pools.enterInit(never), never);
    expect(pools.admissible()).toBe(0);
    release();
    expect(pools.admissible()).toBe(1);
  });

  it('takes on nothing for a session that goes from INIT to READY', async () => {
    const pools = new StagePools({ init: 1, ready: 1, run: 1, postrun: 1 });
    await pools.enterRun(await pools.enterInit(never), never);
    const leaveInit = await pools.enterInit(never);
    const seen: number[] = [];
    pools.onChange(() => seen.push(pools.admissible()));
    void pools.enterRun(leaveInit, never);
    await turn();
    expect(seen).toEqual([0]);
  });

  it('tells when capacity grows', async () => {
    const pools = new StagePools({ init: 1, ready: 0, run: 1, postrun: 1 });
    let changes = 0;
    pools.onChange(() => changes++);
    const leave = await pools.enterInit(never);
    const before = changes;
    leave();
    leave();
    expect(changes).toBe(before + 1);
  });

  it('keeps READY within its size whenever sessions are admitted as it allows', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.record({ init: fc.integer({ min: 1, max: 6 }), ready: fc.nat(4), run: fc.integer({ min: 1, max: 4 }) }),
        fc.array(fc.nat(2), { maxLength: 80 }),
        async (sizes, steps) => {
          const pools = new StagePools({ ...sizes, postrun: 1 });
          const inInit: (() => void)[] = [];
          const running: (() => void)[] = [];
          for (const step of steps) {
            if (step === 0 && pools.admissible() > 0) inInit.push(await pools.enterInit(never));
            if (step === 1) {
              const leave = inInit.shift();
              if (leave !== undefined) {
                void pools.enterRun(leave, never).then((release) => running.push(release));
              }
            }
            if (step === 2) running.shift()?.();
            await turn();
            const metrics = pools.metrics();
            expect(metrics.ready_depth).toBeLessThanOrEqual(sizes.ready);
            expect(metrics.init_inflight).toBeLessThanOrEqual(sizes.init);
            expect(metrics.run_inflight).toBe(running.length);
          }
        },
      ),
      { numRuns: 200 },
    );
  });
});
