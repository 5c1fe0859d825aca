import { describe, expect, it } from 'vitest';
import { settleAll, sharedTurns, undoAll } from '../src/promises.ts';
import { VirtualClock } from '../src/virtual-clock.ts';

describe('settleAll', () => {
  it('resolves to the values in list order', async () => {
    const slow = new Promise<string>((resolve) => setTimeout(resolve, 5, 'slow'));
    expect(await settleAll([slow, Promise.resolve(2)])).toEqual(['slow', 2]);
  });

  it('waits for all other promises after a failure and throws the first failure in list order', async () => {
    const order: string[] = [];
    const failLater = (name: string) =>
      new Promise((_, reject) => setTimeout(() => reject(new Error(name)), 5)).finally(() => order.push(name));
    const failed = settleAll([failLater('listed first'), Promise.reject(new Error('failed first'))]);
    await expect(failed.finally(() => order.push('thrown'))).rejects.toThrow('listed first');
    expect(order).toEqual(['listed first', 'thrown']);
  });
});

describe('undoAll', () => {
  it('runs all steps from the last to the first and throws the first failure', async () => {
    const done: string[] = [];
    const step = (name: string, error?: Error) => async () => {
      done.push(name);
      if (error !== undefined) throw error;
    };
    const steps = [step('server', new Error('server')), step('engine'), step('node', new Error('node')), step('last')];
    await expect(undoAll(steps)).rejects.toThrow('node');
    expect([done, steps]).toEqual([['last', 'node', 'engine', 'server'], []]);
    await undoAll(steps);
  });
});

describe('sharedTurns', () => {
  it('waits for the next turn of the event loop once the time of a turn has passed', async () => {
    const clock = new VirtualClock();
    const takeTurns = sharedTurns(clock, 5);
    let turns = 0;
    setImmediate(() => turns++);
    clock.advance(4);
    await takeTurns();
    expect(turns).toBe(0);
    clock.advance(1);
    await takeTurns();
    expect(turns).toBe(1);
    setImmediate(() => turns++);
    await takeTurns();
    expect(turns).toBe(1);
  });
});
