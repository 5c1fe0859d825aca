import { VirtualClock } from '@floe-rl/core';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Workbench } from '../workbench.ts';

let bench: Workbench;
const clock = new VirtualClock();
beforeEach(async () => {
  bench = await Workbench.create(clock);
});
afterEach(() => bench.dispose());

describe('GET /ready', () => {
  it('checks the store once a second, however many requests arrive', async () => {
    const { store, blobs } = await bench.open();
    let transactions = 0;
    let down = false;
    const counting = Object.assign(Object.create(store), {
      transaction: (work: Parameters<typeof store.transaction>[0]) => {
        transactions++;
        return down
          ? Promise.reject(Object.assign(new Error('gone'), { code: 'SQLITE_FULL' }))
          : store.transaction(work);
      },
    });
    const { server } = await bench.server({}, { store: counting, blobs });
    const before = transactions;
    const ask = async () => (await server.app.inject('/ready')).statusCode;
    expect(new Set(await Promise.all(Array.from({ length: 20 }, ask)))).toEqual(new Set([200]));
    expect(await ask()).toBe(200);
    expect(transactions - before).toBe(1);
    down = true;
    clock.advance(1_000);
    expect(await ask()).toBeGreaterThanOrEqual(500);
    down = false;
    clock.advance(1_000);
    expect(await ask()).toBe(200);
  });
});
