import { VirtualClock } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import { enginePoolsOf } from '../../../src/engines/pool/managed-engine-pools.ts';
import { never, REQUEST, ToyEngine } from './toy-engine.ts';

const prompt = (fingerprint: string | null) => ({
  ids: Int32Array.of(1, 2, 3),
  json: Buffer.from('1,2,3'),
  fingerprint,
});

describe('a prompt of ids', () => {
  const takesIds = { capabilities: { token_input: 'generate' as const }, fingerprint: 'new' };

  it('is not sent to an engine with another tokenizer that has joined meanwhile', async () => {
    const engine = new ToyEngine('a', undefined, takesIds);
    const pool = enginePoolsOf([engine], { clock: new VirtualClock() });
    const call = pool.generate({ ...REQUEST, prompt: prompt('old') }, never());
    await expect(call).rejects.toMatchObject({ code: 'engine_error', details: { engine_id: 'a' } });
    expect(engine.requests).toEqual([]);
    expect(pool.info()[0]?.healthy).toBe(true);
    const reply = await pool.generate({ ...REQUEST, prompt: prompt('new') }, never());
    expect(reply.engineId).toBe('a');
  });
});

describe('EnginePools.modeWhenReady', () => {
  it('waits for the first engine, and failureOf returns the reason meanwhile', async () => {
    const clock = new VirtualClock();
    const pool = enginePoolsOf([], { clock });
    const ready = pool.modeWhenReady(REQUEST, 'auto', never());
    expect(pool.failureOf(REQUEST.completionId)).toMatchObject({ code: 'engine_unavailable' });
    const late = expect(ready).rejects.toMatchObject({ code: 'engine_unavailable' });
    for (let second = 0; second < 62; second++) {
      clock.advance(1_000);
      await new Promise(setImmediate);
    }
    await late;
    expect(pool.failureOf(REQUEST.completionId)).toBeNull();
  });

  it('stops waiting when its signal aborts', async () => {
    const controller = new AbortController();
    const ready = enginePoolsOf([], { clock: new VirtualClock() }).modeWhenReady(REQUEST, 'auto', controller.signal);
    controller.abort(new Error('the client went away'));
    await expect(ready).rejects.toThrow('the client went away');
  });

  it('resolves immediately when the pool has an engine', async () => {
    const clock = new VirtualClock();
    await enginePoolsOf([new ToyEngine('a')], { clock }).modeWhenReady(REQUEST, 'auto', never());
    expect(clock.monotonicMs()).toBe(new VirtualClock().monotonicMs());
  });
});
