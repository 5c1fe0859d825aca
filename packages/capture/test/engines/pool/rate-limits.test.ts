import { VirtualClock } from '@floe-rl/core';
import type { EngineSpec } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import type { EnginePools } from '../../../src/engines/pool/engine-pools.ts';
import { createEnginePools } from '../../../src/engines/pool/managed-engine-pools.ts';
import { never, REQUEST, replyOf, settle, specOf, ToyEngine, ToyNetwork, unavailable } from './toy-engine.ts';

type Rig = { pool: EnginePools; clock: VirtualClock; engines: Map<string, ToyEngine> };

async function rig(specs: Record<string, Partial<EngineSpec>>): Promise<Rig> {
  const clock = new VirtualClock();
  const network = new ToyNetwork();
  const engines = new Map<string, ToyEngine>();
  for (const id of Object.keys(specs)) {
    const engine = ToyEngine.held(id);
    engines.set(id, engine);
    network.put(id, engine);
  }
  const pool = await createEnginePools(
    Object.entries(specs).map(([id, over]) => specOf(id, over)),
    { clock, connect: network.connect },
  );
  return { pool, clock, engines };
}

const perMinute = (requests: number | null, tokens: number | null = null) => ({
  limits: { requests_per_minute: requests, tokens_per_minute: tokens },
});

/** Advances the clock by `ms` milliseconds, with all pending microtasks run before and after. */
async function pass(clock: VirtualClock, ms: number): Promise<void> {
  await settle();
  clock.advance(ms);
  await settle();
}

describe('requests_per_minute', () => {
  it('holds calls in the order of their arrival', async () => {
    const { pool, clock, engines } = await rig({ a: perMinute(60) });
    const a = engines.get('a') as ToyEngine;
    const calls = ['1', '2', '3'].map((completionId) => pool.generate({ ...REQUEST, completionId }, never()));
    await settle();
    expect(a.calls).toBe(1);
    await pass(clock, 999);
    expect(a.calls).toBe(1);
    await pass(clock, 1);
    expect(a.calls).toBe(2);
    await pass(clock, 1_000);
    expect(a.requests.map(({ completionId }) => completionId)).toEqual(['1', '2', '3']);
    for (const call of [...a.pending]) call.answer();
    await Promise.all(calls);
  });

  it('sends a call to another engine when one has used up its requests', async () => {
    const { pool, engines } = await rig({ a: perMinute(60), b: perMinute(60) });
    const calls = [1, 2].map((n) => pool.generate({ ...REQUEST, sessionId: `ses_${n}` }, never()));
    await settle();
    expect([...engines.values()].map((engine) => engine.calls)).toEqual([1, 1]);
    for (const engine of engines.values()) engine.pending[0]?.answer();
    await Promise.all(calls);
  });

  it('stops holding a call when its signal aborts', async () => {
    const { pool, clock, engines } = await rig({ a: perMinute(1) });
    const a = engines.get('a') as ToyEngine;
    const first = pool.generate(REQUEST, never());
    const impatient = new AbortController();
    const second = pool.generate(REQUEST, impatient.signal);
    const third = pool.generate(REQUEST, never());
    await settle();
    a.pending[0]?.answer();
    await first;
    impatient.abort(new Error('enough'));
    await expect(second).rejects.toThrow('enough');
    // After 60 seconds the limit of one call per minute permits the third call. Retries of a call also end after 60 seconds, but the time
    // spent waiting for a rate limit does not count.
    for (let i = 0; i < 60; i++) await pass(clock, 1_000);
    expect(a.calls).toBe(2);
    a.pending[0]?.answer();
    await expect(third).resolves.toMatchObject({ engineId: 'a' });
  });

  it('does not count look-ups', async () => {
    const { pool, engines } = await rig({ a: perMinute(1) });
    const names = { completionId: 'cpl', sessionId: 'ses', pool: 'default' };
    for (let i = 0; i < 3; i++) await pool.detokenize(Int32Array.of(1), names, never());
    const call = pool.generate(REQUEST, never());
    await settle();
    engines.get('a')?.pending[0]?.answer();
    await call;
  });
});

/** Starts an engine with a limit of 6,000 tokens per minute. One call of 100 tokens has ended on it, and its bucket is full again. */
async function afterCallOf100() {
  const { pool, clock, engines } = await rig({ a: perMinute(null, 6_000) });
  const a = engines.get('a') as ToyEngine;
  const usage = { prompt_tokens: 90, completion_tokens: 10, cached_tokens: null };
  const first = pool.generate(REQUEST, never());
  await settle();
  a.pending[0]?.answer(replyOf([7], { usage }));
  await first;
  await pass(clock, 60_000);
  return { pool, clock, a, usage };
}

describe('tokens_per_minute', () => {
  it('is charged with the tokens of a call, and the next call waits for the debt', async () => {
    const { pool, clock, engines } = await rig({ a: perMinute(null, 6_000) });
    const a = engines.get('a') as ToyEngine;
    const usage = { prompt_tokens: 1_500, completion_tokens: 100, cached_tokens: null };
    const first = pool.generate(REQUEST, never());
    await settle();
    a.pending[0]?.answer(replyOf([7], { usage }));
    await first;
    // The bucket holds at most 100 tokens, and the first call used 1600. The second call begins when the bucket is full again: after 16
    // seconds, at 100 tokens per second.
    const second = pool.generate(REQUEST, never());
    await pass(clock, 15_900);
    expect(a.calls).toBe(1);
    await pass(clock, 200);
    expect(a.calls).toBe(2);
    a.pending[0]?.answer();
    await second;
  });

  it('counts calls in flight with the average of earlier calls', async () => {
    const { pool, clock, a, usage } = await afterCallOf100();
    const calls = [1, 2, 3].map(() => pool.generate(REQUEST, never()));
    await settle();
    expect(a.calls).toBe(2);
    await pass(clock, 1_000);
    expect(a.calls).toBe(3);
    await pass(clock, 1_000);
    for (const call of [...a.pending]) call.answer(replyOf([7], { usage }));
    await Promise.all(calls);
    // The calls used as many tokens as were charged in advance, so the next call does not have to wait for earlier ones.
    const next = pool.generate(REQUEST, never());
    await pass(clock, 1_000);
    expect(a.calls).toBe(5);
    a.pending[0]?.answer();
    await next;
  });

  it('does not change its estimate after a call that ended without tokens', async () => {
    const { pool, clock, a, usage } = await afterCallOf100();
    const controller = new AbortController();
    const aborted = pool.generate(REQUEST, controller.signal);
    await settle();
    controller.abort(new Error('enough'));
    await expect(aborted).rejects.toThrow('enough');
    // Each call is charged the 100 tokens of the first one, which use up the bucket. It is full again after a second.
    const calls = [1, 2].map(() => pool.generate(REQUEST, never()));
    await pass(clock, 990);
    expect(a.calls).toBe(3);
    await pass(clock, 10);
    expect(a.calls).toBe(4);
    for (const call of [...a.pending]) call.answer(replyOf([7], { usage }));
    await Promise.all(calls);
  });
});

describe('a provider that answers 429 with retry-after', () => {
  it('gets no call before that time, and the refused call is not lost', async () => {
    const { pool, clock, engines } = await rig({ a: perMinute(6_000) });
    const a = engines.get('a') as ToyEngine;
    const refused = pool.generate(REQUEST, never());
    await settle();
    a.pending[0]?.fail(unavailable({ status: 429, retry_after_ms: 120_000 }));
    await settle();
    const later = pool.generate(REQUEST, never());
    await pass(clock, 119_999);
    expect(a.calls).toBe(1);
    expect(pool.info()[0]?.held_back_ms).toBeGreaterThan(0);
    await pass(clock, 11);
    await pass(clock, 11);
    expect(a.calls).toBe(3);
    for (const call of [...a.pending]) call.answer();
    await Promise.all([refused, later]);
    expect(pool.info()[0]?.healthy).toBe(true);
  });

  it('is not called in a tight loop when retry-after is 0', async () => {
    const { pool, clock, engines } = await rig({ a: perMinute(6_000) });
    const a = engines.get('a') as ToyEngine;
    a.onCall = async () => {
      throw unavailable({ status: 429, retry_after_ms: 0 });
    };
    const controller = new AbortController();
    const call = pool.generate(REQUEST, controller.signal);
    await settle();
    expect(a.calls).toBe(1);
    for (let i = 0; i < 10; i++) await pass(clock, 1_000);
    expect(a.calls).toBeLessThanOrEqual(11);
    controller.abort(new Error('over'));
    await expect(call).rejects.toThrow('over');
  });
});

it('engines without limits report none', async () => {
  const { pool } = await rig({ a: {} });
  expect(pool.info()[0]).not.toHaveProperty('held_back_ms');
});

describe('locality prefer_local', () => {
  const address = (host: string): Partial<EngineSpec> => ({ base_url: `http://${host}:8000`, max_concurrency: 2 });

  async function two(locality: 'prefer_local' | 'none'): Promise<Rig> {
    const clock = new VirtualClock();
    const network = new ToyNetwork();
    const engines = new Map(['near', 'far'].map((id) => [id, ToyEngine.held(id)]));
    for (const [id, engine] of engines) network.put(id, engine);
    const specs = [specOf('near', address('node-7.cluster')), specOf('far', address('node-8.cluster'))];
    const pool = await createEnginePools(specs, { clock, connect: network.connect, locality, host: 'Node-7.cluster' });
    return { pool, clock, engines };
  }
  const calls = ({ pool }: Rig, count: number, from = 0): Promise<unknown>[] =>
    Array.from({ length: count }, (_, i) => pool.generate({ ...REQUEST, sessionId: `ses_${from + i}` }, never()));
  const counts = ({ engines }: Rig): number[] => [...engines.values()].map((engine) => engine.calls);
  const answerAll = ({ engines }: Rig): void => {
    for (const engine of engines.values()) for (const call of [...engine.pending]) call.answer();
  };

  it('uses engines on this host while they have capacity, and others for the rest', async () => {
    const it = await two('prefer_local');
    const all = calls(it, 3);
    await settle();
    expect(counts(it)).toEqual([2, 1]);
    answerAll(it);
    await Promise.all(all);
  });

  it('does not move a session that began on another host', async () => {
    const it = await two('prefer_local');
    const first = calls(it, 3);
    await settle();
    answerAll(it);
    await Promise.all(first);
    const again = calls(it, 1, 2);
    await settle();
    expect(counts(it)).toEqual([2, 2]);
    const fresh = calls(it, 1, 9);
    await settle();
    expect(counts(it)).toEqual([3, 2]);
    answerAll(it);
    await Promise.all([...again, ...fresh]);
  });

  it('has no effect unless it is configured', async () => {
    const it = await two('none');
    const all = calls(it, 2);
    await settle();
    expect(counts(it)).toEqual([1, 1]);
    answerAll(it);
    await Promise.all(all);
  });
});

it('isWaiting is true while a call waits, and false while it runs on an engine', async () => {
  const { pool, clock, engines } = await rig({ a: perMinute(60) });
  const a = engines.get('a') as ToyEngine;
  const first = pool.generate({ ...REQUEST, sessionId: 'first' }, never());
  const controller = new AbortController();
  const second = pool.generate({ ...REQUEST, sessionId: 'second' }, never());
  const third = pool.generate({ ...REQUEST, sessionId: 'second' }, controller.signal);
  await settle();
  expect(['first', 'second'].map((id) => pool.isWaiting(id))).toEqual([false, true]);
  await pass(clock, 1_000);
  expect(pool.isWaiting('second')).toBe(true);
  controller.abort(new Error('over'));
  await expect(third).rejects.toThrow('over');
  expect(pool.isWaiting('second')).toBe(false);
  for (const call of [...a.pending]) call.answer();
  await Promise.all([first, second]);
});
