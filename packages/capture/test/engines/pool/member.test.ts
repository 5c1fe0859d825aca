import { FloeError, VirtualClock } from '@floe-rl/core';
import type { TemplateFacts } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import type { EnginePools } from '../../../src/engines/pool/engine-pools.ts';
import { createEnginePools, enginePoolsOf } from '../../../src/engines/pool/managed-engine-pools.ts';
import {
  never,
  REQUEST,
  replyOf,
  settle,
  specOf,
  ToyEngine,
  type ToyFacts,
  ToyNetwork,
  through,
  unavailable,
} from './toy-engine.ts';

const TAKES_IDS: ToyFacts = { capabilities: { token_input: 'generate' } };

type Setting = {
  readonly clock: VirtualClock;
  readonly network: ToyNetwork;
  readonly notices: { message: string; details: Readonly<Record<string, unknown>> }[];
  readonly pool: EnginePools;
};

async function setting(engines: Readonly<Record<string, ToyEngine>> = {}): Promise<Setting> {
  const clock = new VirtualClock();
  const network = new ToyNetwork();
  const notices: Setting['notices'] = [];
  for (const [id, engine] of Object.entries(engines)) network.put(id, engine);
  const pool = await createEnginePools(
    Object.keys(engines).map((id) => specOf(id)),
    {
      clock,
      connect: network.connect,
      notice: (message, details) => void notices.push({ message, details }),
      policy: 'assignment_count',
    },
  );
  return { clock, network, notices, pool };
}

describe('register', () => {
  it('adds an engine to its pool, and sends calls only to their own pool', async () => {
    const { pool, network } = await setting({ a: new ToyEngine('a') });
    network.put('b', new ToyEngine('b'));
    await expect(pool.register(specOf('b', { pool: 'judge' }))).resolves.toMatchObject({
      engine_id: 'b',
      pool: 'judge',
    });
    for (let i = 0; i < 3; i++) {
      await expect(pool.generate(REQUEST, never())).resolves.toMatchObject({ engineId: 'a' });
      await expect(pool.generate({ ...REQUEST, pool: 'judge' }, never())).resolves.toMatchObject({ engineId: 'b' });
    }
    expect(pool.info().map(({ engine_id }) => engine_id)).toEqual(['a', 'b']);
  });

  it('adds one engine for the same specification twice, also concurrently', async () => {
    const { pool, network } = await setting();
    network.put('a', () => new ToyEngine('a'));
    const spec = specOf('a');
    await Promise.all([pool.register(spec), pool.register({ ...spec }), pool.register(spec)]);
    await pool.register({ ...spec });
    expect(pool.info()).toHaveLength(1);
    expect(network.connections).toHaveLength(1);
  });

  it('rejects with conflict when another specification has the id, also while that one is being connected', async () => {
    const { pool, network } = await setting();
    network.put('a', () => new ToyEngine('a'));
    const first = pool.register(specOf('a'));
    const other = specOf('a', { max_concurrency: 3 });
    await expect(pool.register(other)).rejects.toMatchObject({ code: 'conflict' });
    await first;
    await expect(pool.register(other)).rejects.toMatchObject({ code: 'conflict', details: { engine_id: 'a' } });
    expect(network.connections).toHaveLength(1);
  });

  it('derives a missing id from the URL', async () => {
    const { pool, network } = await setting();
    network.put('a.example-8000', () => new ToyEngine('x'));
    const { engine_id: _, ...spec } = specOf('a');
    await expect(pool.register(spec)).resolves.toMatchObject({ engine_id: 'a.example-8000' });
  });

  it("refuses an engine whose template or tokenizer differs from its pool's, and names both engines", async () => {
    const { pool, network } = await setting({ a: new ToyEngine('a', undefined, { fingerprint: 'f1' }) });
    const other = new ToyEngine('b', undefined, { fingerprint: 'f2' });
    network.put('b', other);
    await expect(pool.register(specOf('b'))).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(/a and b differ.*f1.*f2/),
    });
    expect(other.closed).toBe(1);
    await expect(pool.register(specOf('b', { pool: 'judge' }))).resolves.toMatchObject({ engine_id: 'b' });
    network.put('c', new ToyEngine('c', undefined, { fingerprint: null }));
    await expect(pool.register(specOf('c'))).resolves.toMatchObject({ engine_id: 'c' });
  });

  it('refuses to mix engines that report token ids with engines that do not', async () => {
    const { pool, network } = await setting({ a: new ToyEngine('a') });
    network.put('b', new ToyEngine('b', undefined, { capabilities: { token_ids: false } }));
    await expect(pool.register(specOf('b'))).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining('b does not'),
    });
    expect(pool.info()).toHaveLength(1);
  });

  it('serves a call that has found no engine before', async () => {
    const { pool, network, clock } = await setting();
    network.put('a', new ToyEngine('a'));
    const call = pool.generate(REQUEST, never());
    await settle();
    await pool.register(specOf('a'));
    await expect(through(clock, call)).resolves.toMatchObject({ engineId: 'a' });
  });
});

describe('deregister', () => {
  it('closes an idle engine immediately, and a busy one when its last call has ended', async () => {
    const [idle, used] = [new ToyEngine('a'), ToyEngine.held('b')];
    const { pool } = await setting({ a: idle, b: used });
    await pool.generate(REQUEST, never());
    const call = pool.generate(REQUEST, never());
    await settle();
    expect(pool.deregister(null)).toEqual(['a', 'b']);
    expect([idle.closed, used.closed]).toEqual([1, 0]);
    used.pending[0]?.answer();
    await expect(call).resolves.toMatchObject({ engineId: 'b' });
    expect(used.closed).toBe(1);
    expect(pool.info()).toEqual([]);
    expect(() => pool.modeOf('default', 'auto')).toThrow(/no engine is registered in pool default/);
    expect(pool.deregister('a')).toEqual([]);
  });

  it('aborts calls in flight with abort; those without a delta are retried on another engine', async () => {
    const [a, b] = [ToyEngine.held('a'), new ToyEngine('b')];
    const { pool } = await setting({ a, b });
    const call = pool.generate(REQUEST, never());
    await settle();
    pool.deregister('a', { abort: true });
    await expect(call).resolves.toMatchObject({ engineId: 'b' });
    expect(a.pending).toEqual([]);
    expect(a.closed).toBe(1);
  });

  it('fails a call with abort when one of its deltas was forwarded', async () => {
    const [a, b] = [ToyEngine.held('a'), new ToyEngine('b')];
    const { pool } = await setting({ a, b });
    const call = pool.generate({ ...REQUEST, listener: { started: () => {}, delta: () => {} } }, never());
    await settle();
    a.pending[0]?.request.listener?.delta({ kind: 'text', text: 'x' });
    pool.deregister('a', { abort: true });
    await expect(call).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining('engine a was deregistered'),
      details: { engine_id: 'a' },
    });
    expect(b.calls).toBe(0);
  });

  it('keeps calls that wait for its slot from reaching the engine', async () => {
    const clock = new VirtualClock();
    const [a, b] = [ToyEngine.held('a'), ToyEngine.held('b')];
    Object.assign(a.spec, { max_concurrency: 1 });
    Object.assign(b.spec, { max_concurrency: 1 });
    const pool = enginePoolsOf([a, b], { clock, policy: 'assignment_count' });
    const calls = [1, 2, 3].map(() => pool.generate(REQUEST, never()));
    await settle();
    pool.deregister('a');
    a.pending[0]?.answer();
    b.pending[0]?.answer();
    await settle();
    expect([a.calls, b.calls]).toEqual([1, 2]);
    b.pending[0]?.answer();
    expect((await Promise.all(calls)).map(({ engineId }) => engineId)).toEqual(['a', 'b', 'b']);
  });

  it('keeps a call that was just granted its slot from reaching the engine', async () => {
    const [a, b] = [new ToyEngine('a'), new ToyEngine('b')];
    const { pool } = await setting({ a, b });
    const call = pool.generate(REQUEST, never());
    pool.deregister('a');
    await expect(call).resolves.toMatchObject({ engineId: 'b' });
    expect(a.calls).toBe(0);
  });

  it('keeps calls that pause between two rounds from reaching the engine', async () => {
    const a = new ToyEngine('a', () => Promise.reject(unavailable()));
    const { pool, network, clock } = await setting({ a });
    network.put('b', new ToyEngine('b'));
    const call = pool.generate(REQUEST, never());
    await settle();
    const tried = a.calls;
    expect(tried).toBeGreaterThan(0);
    pool.deregister('a');
    await pool.register(specOf('b'));
    await expect(through(clock, call)).resolves.toMatchObject({ engineId: 'b' });
    expect(a.calls).toBe(tried);
  });

  it.each([[null], ['a']])('of %j cancels a registration that is still connecting', async (id) => {
    const { pool, network } = await setting();
    let arrive = (_engine: ToyEngine): void => {};
    network.put('a', () => new Promise<ToyEngine>((resolve) => (arrive = resolve)));
    const joining = pool.register(specOf('a'));
    await settle();
    pool.deregister(id);
    const engine = new ToyEngine('a');
    const refused = expect(joining).rejects.toMatchObject({ code: 'cancelled' });
    arrive(engine);
    await refused;
    expect(pool.info()).toEqual([]);
    expect(engine.closed).toBe(1);
  });
});

describe('modeOf', () => {
  const facts = (over: Partial<TemplateFacts>): ToyFacts => ({
    capabilities: {
      token_input: 'generate',
      template: {
        close_ids: [9],
        call_end: { ids: [8], each: 8 },
        tail_render: true,
        thinking: { tool_results: 'kept', user_message: 'dropped' },
        fingerprint: null,
        ...over,
      },
    },
  });

  it('is tokens when every engine accepts ids, with the facts that hold for all', () => {
    const clock = new VirtualClock();
    const engines = [
      new ToyEngine('a', undefined, facts({})),
      new ToyEngine(
        'b',
        undefined,
        facts({ tail_render: false, thinking: { tool_results: 'kept', user_message: 'kept' } }),
      ),
    ];
    expect(enginePoolsOf(engines, { clock }).modeOf('default', 'auto')).toEqual({
      mode: 'tokens',
      template: {
        close_ids: [9],
        call_end: { ids: [8], each: 8 },
        tail_render: false,
        thinking: { tool_results: 'kept', user_message: 'unknown' },
        fingerprint: null,
      },
    });
    expect(enginePoolsOf(engines, { clock }).modeOf('default', 'chat').mode).toBe('chat');
    const unlike = [
      new ToyEngine('a', undefined, facts({})),
      new ToyEngine('b', undefined, facts({ close_ids: [9, 10] })),
    ];
    expect(enginePoolsOf(unlike, { clock }).modeOf('default', 'tokens').template.close_ids).toEqual([]);
  });

  it('has the fingerprint of the template when all engines have the same', () => {
    const fingerprintOf = (...fingerprints: (string | null)[]): string | null => {
      const engines = fingerprints.map((fingerprint, i) => new ToyEngine(`e${i}`, undefined, { fingerprint }));
      return enginePoolsOf(engines, { clock: new VirtualClock() }).modeOf('default', 'auto').template.fingerprint;
    };
    expect(fingerprintOf('f', 'f')).toBe('f');
    expect(fingerprintOf('f', null)).toBeNull();
  });

  it('is chat when one engine accepts no ids, and throws when tokens is requested, naming that engine and the reason', () => {
    const engines = [
      new ToyEngine('a', undefined, TAKES_IDS),
      new ToyEngine('b', undefined, { capabilities: { notes: ['it has no generate endpoint'] } }),
    ];
    const pool = enginePoolsOf(engines, { clock: new VirtualClock() });
    expect(pool.modeOf('default', 'auto').mode).toBe('chat');
    expect(() => pool.modeOf('default', 'tokens')).toThrow(
      /engine b .*accepts no prompt of token ids.*it has no generate endpoint/,
    );
  });

  it('is text when the engines report no ids', () => {
    const pool = enginePoolsOf([new ToyEngine('a', undefined, { capabilities: { token_ids: false } })], {
      clock: new VirtualClock(),
    });
    expect(pool.modeOf('default', 'auto').mode).toBe('text');
    expect(pool.modeOf('default', 'chat').mode).toBe('text');
    expect(() => pool.modeOf('default', 'tokens')).toThrow(/engine a .*reports no token ids/);
  });

  it('maxModelLen returns the smallest context length of the pool', () => {
    const clock = new VirtualClock();
    const of = (lengths: readonly (number | null)[]) =>
      enginePoolsOf(
        lengths.map((maxModelLen, i) => new ToyEngine(`e${i}`, undefined, { maxModelLen })),
        { clock },
      ).maxModelLen('default');
    expect([of([300, 200]), of([300, null])]).toEqual([200, null]);
  });
});

describe('verification', () => {
  const lost = () => Promise.reject(unavailable({ connection_lost: true }));

  it('happens before a failed engine is used again, while other engines serve the calls', async () => {
    const a = new ToyEngine('a', lost, { fingerprint: 'f' });
    const { pool, network } = await setting({ a, b: new ToyEngine('b', undefined, { fingerprint: 'f' }) });
    let arrive = (_engine: ToyEngine): void => {};
    network.put('a', () => new Promise<ToyEngine>((resolve) => (arrive = resolve)));
    await expect(pool.generate(REQUEST, never())).resolves.toMatchObject({ engineId: 'b' });
    expect(pool.info()[0]?.healthy).toBe(false);
    for (let i = 0; i < 3; i++) await pool.generate(REQUEST, never());
    expect(a.calls).toBe(1);
    a.onCall = async () => replyOf([7]);
    const fresh = new ToyEngine('a', undefined, { fingerprint: 'f' });
    arrive(fresh);
    await settle();
    expect(pool.info().map(({ healthy }) => healthy)).toEqual([true, true]);
    for (let i = 0; i < 3; i++) await pool.generate(REQUEST, never());
    // The server has not changed, so the old connection `a` stays in use and the connection `fresh` is closed.
    expect([a.calls, fresh.calls, fresh.closed]).toEqual([4, 0, 1]);
  });

  it("keeps what the adapter has learned about the server's missing capabilities", async () => {
    const a = new ToyEngine('a', lost, TAKES_IDS);
    const { pool, network, clock } = await setting({ a });
    a.facts = {};
    a.onCall = async () => {
      a.onCall = async () => replyOf([7]);
      throw unavailable();
    };
    const fresh = new ToyEngine('a', undefined, TAKES_IDS);
    network.put('a', fresh);
    await through(clock, pool.generate(REQUEST, never()));
    expect([a.calls, fresh.calls, fresh.closed]).toEqual([2, 0, 1]);
    expect(pool.modeOf('default', 'auto').mode).toBe('chat');
  });

  it("replaces the connection when the server's capabilities have changed", async () => {
    const a = new ToyEngine('a', lost);
    const { pool, network, clock } = await setting({ a });
    pool.setPolicyVersion('v7');
    const fresh = new ToyEngine('a', undefined, TAKES_IDS);
    network.put('a', fresh);
    await expect(through(clock, pool.generate(REQUEST, never()))).resolves.toMatchObject({ engineId: 'a' });
    expect([a.closed, fresh.calls]).toEqual([1, 1]);
    expect(fresh.versions).toEqual(['v7']);
    expect(pool.modeOf('default', 'auto').mode).toBe('tokens');
  });

  it.each([
    ['model', { model: 'other', fingerprint: 'f' }, /serves other, not policy/],
    ['tokenizer', { fingerprint: 'g' }, /tokenizer or template is g, not f/],
  ])('removes an engine with another %s with a notice, and calls run on other engines', async (_, facts, reason) => {
    const { pool, network, notices } = await setting({
      a: new ToyEngine('a', lost, { fingerprint: 'f' }),
      b: new ToyEngine('b', undefined, { fingerprint: 'f' }),
    });
    const other = new ToyEngine('a', undefined, facts);
    network.put('a', other);
    for (let i = 0; i < 3; i++) {
      await expect(pool.generate(REQUEST, never())).resolves.toMatchObject({ engineId: 'b' });
      await settle();
    }
    expect(pool.info().map(({ engine_id }) => engine_id)).toEqual(['b']);
    expect(notices).toEqual([
      { message: expect.stringContaining('removed from its pool'), details: expect.anything() },
    ]);
    expect(String(notices[0]?.details.reason)).toMatch(reason);
    expect([other.calls, other.closed]).toEqual([0, 1]);
  });

  it("rejects the call with engine_error when the pool's only engine was replaced", async () => {
    const { pool, network, clock } = await setting({ a: new ToyEngine('a', lost) });
    network.put('a', new ToyEngine('a', undefined, { model: 'other' }));
    await expect(through(clock, pool.generate(REQUEST, never()))).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining('was replaced by another server: it serves other'),
    });
    expect(clock.monotonicMs()).toBeLessThan(1_000);
  });

  it.each([
    ['no model list', () => Promise.reject(new FloeError('engine_error', 'no model list')), /no model list/],
    ['no template', async () => new ToyEngine('a', undefined, { fingerprint: null }), /no longer renders/],
  ])('excludes an engine that answers with %s, for any time, and uses it afterwards', async (_, wrong, why) => {
    const a = new ToyEngine('a', lost, { fingerprint: 'f' });
    const { pool, network, clock, notices } = await setting({
      a,
      b: new ToyEngine('b', undefined, { fingerprint: 'f' }),
    });
    let sentCall = 0;
    network.put('a', () => {
      sentCall++;
      return wrong();
    });
    const callTwice = async (): Promise<void> => {
      for (let i = 0; i < 2; i++) {
        await expect(pool.generate(REQUEST, never())).resolves.toMatchObject({ engineId: 'b' });
        await settle();
      }
    };
    await callTwice();
    for (let round = 1; round <= 10; round++) {
      await callTwice();
      expect(sentCall).toBe(round);
      expect(pool.info().map(({ healthy }) => healthy)).toEqual([false, true]);
      clock.advance(5_000);
    }
    expect(a.calls).toBe(1);
    expect(notices).toEqual([
      { message: expect.stringContaining('does not answer as it did'), details: expect.anything() },
    ]);
    expect(String(notices[0]?.details.reason)).toMatch(why);
    a.onCall = async () => replyOf([7]);
    network.put('a', new ToyEngine('a', undefined, { fingerprint: 'f' }));
    for (let i = 0; i < 4; i++) {
      await pool.generate(REQUEST, never());
      await settle();
    }
    expect(pool.info().map(({ healthy }) => healthy)).toEqual([true, true]);
    expect(a.calls).toBeGreaterThan(1);
  });

  it('happens after an adapter reported itself unhealthy', async () => {
    const a = new ToyEngine('a');
    const { pool, network } = await setting({ a, b: new ToyEngine('b') });
    a.healthy = false;
    network.put('a', new ToyEngine('a', undefined, { model: 'other' }));
    await expect(pool.generate(REQUEST, never())).resolves.toMatchObject({ engineId: 'b' });
    await settle();
    expect(pool.info().map(({ engine_id }) => engine_id)).toEqual(['b']);
    expect(a.calls).toBe(0);
  });

  it('does not happen after status 429', async () => {
    const busy = new ToyEngine('a', async () => {
      busy.healthy = false;
      throw unavailable({ status: 429 });
    });
    const { pool, network } = await setting({ a: busy, b: new ToyEngine('b') });
    await pool.generate(REQUEST, never());
    await settle();
    await pool.generate(REQUEST, never());
    expect(network.connections).toHaveLength(2);
  });

  it('is repeated for a call while the server does not answer, until the server is back', async () => {
    const a = new ToyEngine('a', lost);
    const { pool, network, clock } = await setting({ a });
    let refusals = 3;
    network.put('a', async () => {
      if (refusals-- > 0) throw unavailable();
      a.onCall = async () => replyOf([7]);
      return new ToyEngine('a');
    });
    await expect(through(clock, pool.generate(REQUEST, never()))).resolves.toMatchObject({ engineId: 'a' });
    expect(refusals).toBe(-1);
  });

  it('serves waiting calls when it ends, even if the call that began it was aborted', async () => {
    const [a, b] = [ToyEngine.held('a'), ToyEngine.held('b')];
    const { pool, network } = await setting({ a });
    network.put('b', b);
    await pool.register(specOf('b', { max_concurrency: 1 }));
    for (const engine of [a, b]) engine.healthy = false;
    let arrive = (_engine: ToyEngine): void => {};
    network.put('a', () => new Promise<ToyEngine>((resolve) => (arrive = resolve)));
    network.put('b', new ToyEngine('b'));
    const controller = new AbortController();
    const aborted = pool.generate({ ...REQUEST, sessionId: 'ses_1' }, controller.signal);
    await settle();
    const running = pool.generate({ ...REQUEST, sessionId: 'ses_2' }, never());
    await settle();
    const waiting = pool.generate({ ...REQUEST, sessionId: 'ses_3' }, never());
    controller.abort(new Error('enough'));
    await expect(aborted).rejects.toThrow('enough');
    expect([a.pending.length, b.pending.length]).toEqual([0, 1]);
    arrive(new ToyEngine('a'));
    await settle();
    expect([a.pending.length, b.pending.length]).toEqual([1, 1]);
    for (const { pending } of [a, b]) pending[0]?.answer();
    await expect(waiting).resolves.toMatchObject({ engineId: 'a' });
    await running;
  });

  it('does not let its waiting call reach an engine that was deregistered meanwhile', async () => {
    const a = new ToyEngine('a', lost);
    const { pool, network, clock } = await setting({ a });
    let arrive = (_engine: ToyEngine): void => {};
    network.put('a', () => new Promise<ToyEngine>((resolve) => (arrive = resolve)));
    const call = pool.generate(REQUEST, never());
    await settle();
    clock.advance(100);
    await settle();
    a.onCall = async () => replyOf([7]);
    pool.deregister('a');
    const fresh = new ToyEngine('a');
    arrive(fresh);
    network.put('b', new ToyEngine('b'));
    await pool.register(specOf('b'));
    await expect(through(clock, call)).resolves.toMatchObject({ engineId: 'b' });
    expect([a.calls, a.closed, fresh.calls, fresh.closed]).toEqual([1, 1, 0, 1]);
  });

  it('closes its connection when the pools were closed while it ran', async () => {
    const { pool, network } = await setting({ a: new ToyEngine('a', lost), b: new ToyEngine('b') });
    let arrive = (_engine: ToyEngine): void => {};
    network.put('a', () => new Promise<ToyEngine>((resolve) => (arrive = resolve)));
    for (let i = 0; i < 2; i++) await pool.generate(REQUEST, never());
    await pool.close();
    const fresh = new ToyEngine('a', undefined, TAKES_IDS);
    arrive(fresh);
    await settle();
    expect(fresh.closed).toBe(1);
  });

  it('does not prevent deregistering the engine', async () => {
    const { pool, network } = await setting({ a: new ToyEngine('a', lost), b: new ToyEngine('b') });
    let arrive = (_engine: ToyEngine): void => {};
    network.put('a', () => new Promise<ToyEngine>((resolve) => (arrive = resolve)));
    await pool.generate(REQUEST, never());
    await pool.generate(REQUEST, never());
    pool.deregister('a');
    const fresh = new ToyEngine('a', undefined, TAKES_IDS);
    arrive(fresh);
    await settle();
    expect(fresh.closed).toBe(1);
    expect(pool.info().map(({ engine_id }) => engine_id)).toEqual(['b']);
  });
});

it('createEnginePools rejects when the engines of a pool differ', async () => {
  const network = new ToyNetwork();
  const engines = [
    new ToyEngine('a', undefined, { fingerprint: 'f' }),
    new ToyEngine('b', undefined, { fingerprint: 'g' }),
  ];
  for (const [i, engine] of engines.entries()) network.put('ab'[i] as string, engine);
  const opened = createEnginePools([specOf('a'), specOf('b')], { clock: new VirtualClock(), connect: network.connect });
  await expect(opened).rejects.toMatchObject({ code: 'engine_error' });
  expect(engines.map(({ closed }) => closed)).toEqual([1, 1]);
});

it('the policy version is passed to an engine that joins later', async () => {
  const { pool, network } = await setting();
  pool.setPolicyVersion('v3');
  const engine = new ToyEngine('a');
  network.put('a', engine);
  await pool.register(specOf('a'));
  pool.setPolicyVersion('v4');
  expect(engine.versions).toEqual(['v3', 'v4']);
});

it('failureOf returns the reason while a call finds no engine, until it runs on one or ends', async () => {
  const { pool, network, clock } = await setting();
  const other = { ...REQUEST, completionId: 'cpl_other' };
  const mine = REQUEST.completionId;
  expect(pool.failureOf(mine)).toBeNull();
  const call = pool.generate(REQUEST, never());
  const left = new AbortController();
  const ended = pool.generate(other, left.signal);
  await settle();
  expect(pool.failureOf(mine)).toMatchObject({ code: 'engine_unavailable' });
  expect(pool.failureOf('cpl_other')).toMatchObject({ code: 'engine_unavailable' });
  left.abort(new FloeError('cancelled', 'gone'));
  await expect(ended).rejects.toMatchObject({ code: 'cancelled' });
  expect(pool.failureOf('cpl_other')).toBeNull();
  const engine = ToyEngine.held('a');
  network.put('a', engine);
  await pool.register(specOf('a'));
  clock.advance(5_000);
  await settle();
  expect(engine.pending).toHaveLength(1);
  expect(pool.failureOf(mine)).toBeNull();
  engine.pending[0]?.answer();
  await expect(call).resolves.toMatchObject({ engineId: 'a' });
});

it('closing the pools closes the connection to a removed engine on which a call is running', async () => {
  const { pool, network } = await setting();
  const engine = ToyEngine.held('a');
  network.put('a', engine);
  await pool.register(specOf('a'));
  const call = pool.generate(REQUEST, never());
  await settle();
  pool.deregister('a');
  await pool.close();
  await pool.close();
  expect(engine.closed).toBe(1);
  engine.pending[0]?.answer();
  await call;
  expect(engine.closed).toBe(1);
});
