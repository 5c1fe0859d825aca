import { nextEventLoopTurn, VirtualClock } from '@floe-rl/core';
import { engineKindSchema } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { reportsLoad } from '../../../src/engines/engine-kinds.ts';
import { AdaptiveLimit } from '../../../src/engines/pool/adaptive-concurrency.ts';
import type { EngineLoad } from '../../../src/engines/pool/engine-load.ts';
import type { EnginePools } from '../../../src/engines/pool/engine-pools.ts';
import { createEnginePools } from '../../../src/engines/pool/managed-engine-pools.ts';
import { never, REQUEST, specOf, ToyEngine } from './toy-engine.ts';

const BOUNDS = { min: 4, max: 100 };
const CALM: EngineLoad = { kvUsage: 0.5, running: 16, waiting: 0, preemptions: 0 };
const QUEUE: EngineLoad = { ...CALM, waiting: 10 };

/** Gives readings to a limit while all its slots are in use, and returns the limit after each reading. */
function limitsAfter(limit: AdaptiveLimit, loads: readonly (EngineLoad | null)[]): number[] {
  return loads.map((load) => {
    limit.observe(load, limit.limit);
    return limit.limit;
  });
}

const times = <T>(count: number, value: T): T[] => Array.from({ length: count }, () => value);

describe('AdaptiveLimit', () => {
  it('grows fast until the first overload, then shrinks by a fifth, settles, and grows by equal steps', () => {
    const limit = new AdaptiveLimit(BOUNDS);
    const preempted = { ...CALM, preemptions: 3 };
    expect(limit.limit).toBe(16);
    expect(limitsAfter(limit, times(3, CALM))).toEqual([24, 36, 54]);
    // One overload shrinks the limit only once, even if the next readings still show the overload.
    const later = [preempted, { ...CALM, preemptions: 5 }, { ...CALM, preemptions: 6 }];
    expect(limitsAfter(limit, later)).toEqual([43, 43, 43]);
    expect(limitsAfter(limit, times(3, { ...CALM, preemptions: 6 }))).toEqual([46, 49, 52]);
    expect(limitsAfter(limit, times(50, { ...CALM, preemptions: 6 })).at(-1)).toBe(100);
  });

  it('shrinks for a queue that lasts for two readings, and not for a shorter one', () => {
    const limit = new AdaptiveLimit({ min: 4, max: 16 });
    expect(limitsAfter(limit, [QUEUE, CALM, QUEUE])).toEqual([16, 16, 16]);
    expect(limitsAfter(limit, [QUEUE])).toEqual([12]);
    expect(limit.state().decreases).toBe(1);
  });

  it('does not shrink for a few preemptions among many running requests', () => {
    const limit = new AdaptiveLimit({ min: 4, max: 16 });
    const loads = [0, 5, 10].map((preemptions) => ({ ...CALM, running: 100, preemptions }));
    expect(limitsAfter(limit, loads)).toEqual([16, 16, 16]);
    expect(limitsAfter(limit, [{ ...CALM, running: 100, preemptions: 16 }])).toEqual([12]);
  });

  it('takes few waiting requests for arrivals', () => {
    const limit = new AdaptiveLimit({ min: 4, max: 16 });
    expect(limitsAfter(limit, times(4, { ...CALM, waiting: 2 }))).toEqual(times(4, 16));
  });

  it('does not grow while the KV cache is almost full, or while it is not used', () => {
    const limit = new AdaptiveLimit(BOUNDS);
    expect(limitsAfter(limit, times(3, { ...CALM, kvUsage: 0.95 }))).toEqual([16, 16, 16]);
    const unused = new AdaptiveLimit(BOUNDS);
    for (const inflight of [0, 14, 0]) unused.observe(CALM, inflight);
    expect(unused.limit).toBe(16);
    // Calls that began and ended between two readings count as use of the limit.
    unused.begin(16);
    unused.observe(CALM, 0);
    expect(unused.limit).toBe(24);
  });

  it('takes a smaller counter of preemptions for that of a restarted engine', () => {
    const limit = new AdaptiveLimit({ min: 4, max: 16 });
    expect(
      limitsAfter(
        limit,
        [900, 2, 2].map((preemptions) => ({ ...CALM, preemptions })),
      ),
    ).toEqual([16, 16, 16]);
    expect(limitsAfter(limit, [{ ...CALM, preemptions: 3 }])).toEqual([12]);
  });

  it('ignores readings without a value, and counts them', () => {
    const limit = new AdaptiveLimit(BOUNDS);
    const nothing = { kvUsage: null, running: null, waiting: null, preemptions: null };
    expect(limitsAfter(limit, [null, nothing, null])).toEqual([16, 16, 16]);
    expect(limit.state()).toMatchObject({ unreadable: 3, kv_usage: null, limit: 16 });
    // The number of waiting requests alone shows no overload, because it is compared with the number of running requests.
    expect(limitsAfter(limit, times(2, { ...nothing, waiting: 1_000 }))).not.toContain(12);
  });

  it('stays within its bounds for any readings, so that the engine always gets calls', () => {
    const value = fc.option(fc.oneof(fc.double({ min: 0, max: 1e15, noNaN: true }), fc.constant(0)));
    const load = fc.option(fc.record({ kvUsage: value, running: value, waiting: value, preemptions: value }));
    const reading = fc.tuple(load, fc.nat(2_000));
    const bounds = fc.tuple(fc.integer({ min: 1, max: 50 }), fc.integer({ min: 50, max: 2_000 }));
    fc.assert(
      fc.property(bounds, fc.array(reading, { maxLength: 60 }), ([min, max], readings) => {
        const limit = new AdaptiveLimit({ min, max });
        for (const [one, inflight] of readings) {
          limit.observe(one, inflight);
          expect(limit.limit).toBeGreaterThanOrEqual(min);
          expect(limit.limit).toBeLessThanOrEqual(max);
          expect(Number.isInteger(limit.limit)).toBe(true);
        }
      }),
    );
  });
});

describe('a pool with an engine of adaptive concurrency', () => {
  const clock = new VirtualClock();

  async function poolOf(engine: ToyEngine, fields: Parameters<typeof specOf>[1] = {}): Promise<EnginePools> {
    const spec = specOf('a', { adaptive_concurrency: { min: 2, max: 64 }, ...fields });
    return createEnginePools([spec], { clock, connect: async () => engine });
  }

  /** Advances the time to the next reading of the load. */
  async function nextReading(): Promise<void> {
    clock.advance(5_000);
    await nextEventLoopTurn();
  }

  const metricsOf = (kv: string, running: number, waiting: number, preemptions: number): string =>
    [
      `vllm:kv_cache_usage_perc{engine="0"} ${kv}`,
      `vllm:num_requests_running{engine="0"} ${running}`,
      `vllm:num_requests_waiting{engine="0"} ${waiting}`,
      `vllm:num_preemptions_total{engine="0"} ${preemptions}`,
    ].join('\n');

  it('gives waiting calls their slots when the limit grows, and shows the state', async () => {
    const engine = ToyEngine.held('a', { metricsText: metricsOf('0.4', 16, 0, 7) });
    const pool = await poolOf(engine);
    const calls = Array.from({ length: 40 }, (_, i) => pool.generate({ ...REQUEST, completionId: `c${i}` }, never()));
    await nextEventLoopTurn();
    expect(engine.pending).toHaveLength(16);
    await nextReading();
    expect(engine.pending).toHaveLength(24);
    expect(pool.info()[0]).toMatchObject({
      inflight: 24,
      max_concurrency: 24,
      adaptive: { limit: 24, decreases: 0, kv_usage: 0.4, waiting: 0, preemptions: 7, unreadable: 0 },
    });
    engine.facts = { metricsText: metricsOf('0.99', 24, 0, 9) };
    await nextReading();
    expect(pool.info()[0]).toMatchObject({ max_concurrency: 19, adaptive: { decreases: 1 } });
    while (engine.pending.length > 0) {
      for (const call of [...engine.pending]) call.answer();
      await nextEventLoopTurn();
    }
    await Promise.all(calls);
    await pool.close();
  });

  it('serves calls whatever the metrics are, and stops reading when the engine has left', async () => {
    const engine = new ToyEngine('a');
    let readings = 0;
    engine.metrics = async () => {
      readings++;
      return [null, 'vllm:num_requests_waiting NaN', 'vllm:num_requests_waiting 1e18'][readings % 3] ?? '';
    };
    const pool = await poolOf(engine);
    for (let reading = 1; reading <= 6; reading++) {
      await nextReading();
      expect((await pool.generate(REQUEST, never())).engineId).toBe('a');
    }
    expect(pool.info()[0]).toMatchObject({ max_concurrency: 16, adaptive: { unreadable: 6 } });
    pool.deregister('a');
    await nextReading();
    expect(readings).toBe(6);
    await pool.close();
  });

  it('obeys max_concurrency as well', async () => {
    const pool = await poolOf(new ToyEngine('a'), { max_concurrency: 3 });
    expect(pool.info()[0]).toMatchObject({ max_concurrency: 3, adaptive: { limit: 16 } });
    await pool.close();
  });

  it.each(engineKindSchema.options.filter((kind) => !reportsLoad(kind)))(
    'refuses an engine of kind %s, which reports no load',
    async (kind) => {
      await expect(poolOf(new ToyEngine('a'), { kind })).rejects.toMatchObject({
        code: 'unsupported',
        message: expect.stringContaining('set max_concurrency instead'),
      });
    },
  );
});
