import { VirtualClock } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import { never } from '../../../../sandbox/test/backends/workbench.ts';
import { ToolsetPool } from '../../../src/host/toolset-pool.ts';
import type { OpenToolset } from '../../../src/tools/toolset.ts';

const NODE = { key: 'vm', scope: 'node' } as const;
const GROUP = { key: 'vm', scope: 'group' } as const;

/** Makes a pool and a function that opens toolsets. `events` lists what happens to the toolsets, in order. */
function poolOf(reset: ((number: number) => Promise<void>) | null) {
  const clock = new VirtualClock();
  const events: string[] = [];
  let count = 0;
  const open = async (): Promise<OpenToolset> => {
    const number = ++count;
    events.push(`open ${number}`);
    return {
      tools: [],
      ...(reset === null
        ? {}
        : {
            reset: async () => {
              events.push(`reset ${number}`);
              await reset(number);
            },
          }),
      close: async () => {
        events.push(`close ${number}`);
      },
    };
  };
  return { pool: new ToolsetPool(clock), clock, open, events };
}

describe('a toolset that is kept', () => {
  it('is reset before each further session, and closed at the end', async () => {
    const { pool, open, events } = poolOf(async () => {});
    for (let session = 0; session < 3; session++) (await pool.take(NODE, open, never)).release();
    expect(events).toEqual(['open 1', 'reset 1', 'reset 1']);
    await pool.close();
    expect(events.at(-1)).toBe('close 1');
  });

  it('is used by one session at a time', async () => {
    const { pool, open, events } = poolOf(async () => {});
    const first = await pool.take(NODE, open, never);
    const second = pool.take(NODE, open, never);
    const third = pool.take(NODE, open, never);
    await new Promise((resolve) => setImmediate(resolve));
    expect(events).toEqual(['open 1']);
    first.release();
    const { toolset, release } = await second;
    expect(toolset).toBe(first.toolset);
    expect(events).toEqual(['open 1', 'reset 1']);
    release();
    await third;
    expect(events).toEqual(['open 1', 'reset 1', 'reset 1']);
  });

  it('is closed when a reset fails, and the next session gets a new one', async () => {
    const { pool, open, events } = poolOf(async (number) => {
      if (number === 1) throw new Error('it is broken');
    });
    const first = await pool.take(NODE, open, never);
    first.release();
    const second = await pool.take(NODE, open, never);
    expect(second.toolset).not.toBe(first.toolset);
    expect(events).toEqual(['open 1', 'reset 1', 'close 1', 'open 2']);
  });

  it('is opened once more for each session where it cannot be reset', async () => {
    const { pool, open, events } = poolOf(null);
    for (let session = 0; session < 2; session++) (await pool.take(NODE, open, never)).release();
    expect(events).toEqual(['open 1', 'close 1', 'open 2']);
  });

  it('goes to the next session when one that waits is cancelled or cannot open it', async () => {
    const { pool, open, events } = poolOf(async () => {});
    const failing = pool.take(NODE, () => Promise.reject(new Error('no machine')), never);
    await expect(failing).rejects.toThrow('no machine');
    const first = await pool.take(NODE, open, never);
    const abort = new AbortController();
    const cancelled = pool.take(NODE, open, abort.signal);
    const next = pool.take(NODE, open, never);
    abort.abort(new Error('cancelled'));
    await expect(cancelled).rejects.toThrow('cancelled');
    expect(events).toEqual(['open 1']);
    first.release();
    expect((await next).toolset).toBe(first.toolset);
  });

  it('is closed a minute after the last session of its group, and not before', async () => {
    const { pool, clock, open, events } = poolOf(async () => {});
    (await pool.take(GROUP, open, never)).release();
    await clock.advance(59_000);
    (await pool.take(GROUP, open, never)).release();
    await clock.advance(59_000);
    expect(events).toEqual(['open 1', 'reset 1']);
    await clock.advance(2_000);
    expect(events).toEqual(['open 1', 'reset 1', 'close 1']);
    await pool.take(GROUP, open, never);
    expect(events.at(-1)).toBe('open 2');
  });
});
