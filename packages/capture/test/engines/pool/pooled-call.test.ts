import { FloeError, VirtualClock } from '@floe-rl/core';
import { engineSpecSchema } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import type { GenerateReply, GenerateRequest } from '../../../src/engines/engine.ts';
import { createEnginePools, enginePoolsOf } from '../../../src/engines/pool/managed-engine-pools.ts';
import { json, ScriptedServer } from '../scripted-server.ts';
import { never, REQUEST, replyOf, settle, ToyEngine, through, unavailable } from './toy-engine.ts';

const failing = (error: FloeError) => () => Promise.reject(error);

/** Makes a pool whose choice policy picks the engines in turn, beginning with the first. */
const inTurn = (engines: readonly ToyEngine[], clock = new VirtualClock()) =>
  enginePoolsOf(engines, { clock, policy: 'assignment_count' });

function listening(): { relayed: string[]; request: GenerateRequest } {
  const relayed: string[] = [];
  const listener = {
    started: () => void relayed.push('started'),
    delta: (delta: { kind: string }) => void relayed.push(delta.kind),
  };
  return { relayed, request: { ...REQUEST, listener } };
}

describe('PooledCall', () => {
  it('returns the engine that answered, its model and the duration of its call', async () => {
    const clock = new VirtualClock();
    const engine = new ToyEngine(
      'a',
      async () => {
        clock.advance(40);
        return replyOf([7, 8]);
      },
      { model: 'm' },
    );
    await expect(enginePoolsOf([engine], { clock }).generate(REQUEST, never())).resolves.toMatchObject({
      reply: replyOf([7, 8]),
      engineId: 'a',
      model: 'm',
      engineMs: 40,
    });
  });

  it('never retries a call whose listener has received a delta', async () => {
    const { relayed, request } = listening();
    const broken = new ToyEngine('a', async (sentCall): Promise<GenerateReply> => {
      sentCall.listener?.started(4);
      sentCall.listener?.delta({ kind: 'text', text: 'Hel' });
      throw unavailable();
    });
    const other = new ToyEngine('b');
    await expect(inTurn([broken, other]).generate(request, never())).rejects.toMatchObject({ code: 'engine_error' });
    expect(relayed).toEqual(['started', 'text']);
    expect(other.calls).toBe(0);
  });

  it('retries a call whose listener was only notified of its start, and notifies it once', async () => {
    const { relayed, request } = listening();
    const broken = new ToyEngine('a', async (sentCall): Promise<GenerateReply> => {
      sentCall.listener?.started(4);
      throw unavailable();
    });
    const other = new ToyEngine('b', async (sentCall) => {
      sentCall.listener?.started(4);
      sentCall.listener?.delta({ kind: 'text', text: '<7>' });
      return replyOf([7]);
    });
    await expect(inTurn([broken, other]).generate(request, never())).resolves.toMatchObject({ engineId: 'b' });
    expect(relayed).toEqual(['started', 'text']);
  });

  it('immediately retries a call without a reply on another engine', async () => {
    const clock = new VirtualClock();
    const pool = inTurn([new ToyEngine('a', failing(unavailable())), new ToyEngine('b')], clock);
    await expect(pool.generate(REQUEST, never())).resolves.toMatchObject({ engineId: 'b' });
    expect(clock.monotonicMs()).toBe(0);
  });

  it('waits for the retry-after time of an engine that returns', async () => {
    const clock = new VirtualClock();
    const engine = new ToyEngine('a', async () => {
      if (clock.monotonicMs() < 3_000) throw unavailable({ retry_after_ms: 2_000 });
      return replyOf([7]);
    });
    await expect(through(clock, inTurn([engine], clock).generate(REQUEST, never()))).resolves.toMatchObject({
      engineId: 'a',
    });
    expect(engine.calls).toBe(3);
  });

  it('rejects with the last failure after a minute', async () => {
    const clock = new VirtualClock();
    const pool = inTurn([new ToyEngine('a', failing(unavailable()))], clock);
    await expect(through(clock, pool.generate(REQUEST, never()))).rejects.toMatchObject({ code: 'engine_unavailable' });
    expect(clock.monotonicMs()).toBeLessThanOrEqual(61_000);
    expect(clock.monotonicMs()).toBeGreaterThan(50_000);
  });

  it.each(['engine_error', 'engine_rejected', 'unsupported'] as const)(
    'does not retry a call that failed with %s',
    async (code) => {
      const engine = new ToyEngine('a', failing(new FloeError(code, 'no')));
      await expect(inTurn([engine]).generate(REQUEST, never())).rejects.toMatchObject({ code });
      expect(engine.calls).toBe(1);
    },
  );

  it('sends a request that loses connections to at most three engines', async () => {
    const clock = new VirtualClock();
    const engines = ['a', 'b', 'c', 'd'].map(
      (id) => new ToyEngine(id, failing(unavailable({ connection_lost: true }))),
    );
    await expect(through(clock, inTurn(engines, clock).generate(REQUEST, never()))).rejects.toMatchObject({
      code: 'engine_unavailable',
    });
    expect(engines.reduce((sum, { calls }) => sum + calls, 0)).toBe(3);
  });

  it('excludes an engine after consecutive failures, and lets one call try it later', async () => {
    const clock = new VirtualClock();
    const engines = [ToyEngine.held('a'), ToyEngine.held('b')];
    const pool = enginePoolsOf(engines, { clock, policy: 'consistent_hash' });
    const call = async (): Promise<{ done: Promise<unknown> }> => {
      const done = pool.generate(REQUEST, never());
      await settle();
      return { done };
    };
    const first = await call();
    const home = engines.find(({ pending }) => pending.length > 0) as ToyEngine;
    const other = engines.find((engine) => engine !== home) as ToyEngine;
    home.pending[0]?.answer();
    await first.done;
    for (let i = 0; i < 3; i++) {
      const { done } = await call();
      const failed = expect(done).rejects.toMatchObject({ code: 'engine_error' });
      home.pending[0]?.fail(new FloeError('engine_error', 'no'));
      await failed;
    }
    expect(pool.info().map(({ engine_id, healthy }) => healthy === (engine_id !== home.spec.engine_id))).toEqual([
      true,
      true,
    ]);
    const elsewhere = await call();
    expect([home.pending.length, other.pending.length]).toEqual([0, 1]);
    clock.advance(5_000);
    const probe = await call();
    const meanwhile = await call();
    expect([home.pending.length, other.pending.length]).toEqual([1, 2]);
    const failed = expect(probe.done).rejects.toMatchObject({ code: 'engine_error' });
    home.pending[0]?.fail(new FloeError('engine_error', 'no'));
    await failed;
    const elsewhereAgain = await call();
    expect([home.pending.length, other.pending.length]).toEqual([0, 3]);
    clock.advance(5_000);
    const secondProbe = await call();
    home.pending[0]?.answer();
    await secondProbe.done;
    expect(pool.info().every(({ healthy }) => healthy)).toBe(true);
    const back = await call();
    expect([home.pending.length, other.pending.length]).toEqual([1, 3]);
    for (const { pending } of engines) for (const { answer } of [...pending]) answer();
    await Promise.all([elsewhere, meanwhile, elsewhereAgain, back].map(({ done }) => done));
  });

  it("rejects with the signal's reason while it waits", async () => {
    const controller = new AbortController();
    const engine = new ToyEngine('a', async (): Promise<GenerateReply> => {
      queueMicrotask(() => controller.abort(new Error('enough')));
      throw unavailable();
    });
    await expect(inTurn([engine]).generate(REQUEST, controller.signal)).rejects.toThrow('enough');
  });

  it('rejects after a minute when no engine is registered', async () => {
    const clock = new VirtualClock();
    const pool = enginePoolsOf([], { clock });
    await expect(through(clock, pool.generate(REQUEST, never()))).rejects.toMatchObject({ code: 'engine_unavailable' });
    await expect(through(clock, pool.countTokens(REQUEST, never()))).rejects.toMatchObject({
      code: 'engine_unavailable',
      message: 'no engine is registered in pool default',
    });
    expect(pool.maxModelLen('default')).toBeNull();
    expect(await pool.metrics()).toBe('');
  });

  it('closes all engines when one of them cannot be connected', async () => {
    const server = new ScriptedServer(({ response }) => json(response, 200, {}));
    await server.listen();
    const specs = [server.baseUrl, 'http://127.0.0.1:1'].map((base_url) => engineSpecSchema.parse({ base_url }));
    await expect(createEnginePools(specs, { clock: new VirtualClock() })).rejects.toMatchObject({
      code: 'engine_unavailable',
    });
    await server.close();
  });

  it('rejects calls after it is closed, including those that wait for a slot', async () => {
    const engine = ToyEngine.held('a');
    Object.assign(engine.spec, { max_concurrency: 1 });
    const pool = enginePoolsOf([engine], { clock: new VirtualClock() });
    const first = pool.generate(REQUEST, never());
    await settle();
    const second = pool.generate(REQUEST, never());
    const refused = expect(second).rejects.toMatchObject({
      code: 'engine_unavailable',
      message: expect.stringContaining('closed'),
    });
    await pool.close();
    await refused;
    await expect(pool.generate(REQUEST, never())).rejects.toMatchObject({ message: expect.stringContaining('closed') });
    await expect(pool.register(engine.spec)).rejects.toMatchObject({ message: expect.stringContaining('closed') });
    engine.pending[0]?.answer();
    await expect(first).resolves.toMatchObject({ engineId: 'a' });
    expect(engine.closed).toBe(1);
    await pool.close();
  });
});
