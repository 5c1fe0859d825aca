import { describe, expect, test } from 'vitest';
import { FloeError } from '../../../src/core/errors.ts';
import { VirtualClock } from '../../../src/core/virtual-clock.ts';
import type { EnginePools } from '../../../src/engines/pool/engine-pools.ts';
import { enginePoolsOf } from '../../../src/engines/pool/managed-engine-pools.ts';
import { gone, never, REQUEST, settle, ToyEngine, type ToyFacts, through } from './toy-engine.ts';

const PAUSES: ToyFacts = { capabilities: { pause: true } };
const HOLD = { mode: 'keep', whilePaused: 'hold' } as const;
const REJECT = { mode: 'keep', whilePaused: 'reject' } as const;

type Rig = { readonly pool: EnginePools; readonly clock: VirtualClock; readonly notices: string[] };

function rig(...engines: readonly ToyEngine[]): Rig {
  const clock = new VirtualClock();
  const notices: string[] = [];
  const notice = (message: string, details: object): void => void notices.push(`${message} ${JSON.stringify(details)}`);
  return { pool: enginePoolsOf(engines, { clock, notice, policy: 'assignment_count' }), clock, notices };
}

describe('a pause', () => {
  test('holds new calls from the moment that it is asked for, for as long as it takes', async () => {
    const engine = new ToyEngine('a', undefined, PAUSES);
    const { pool, clock } = rig(engine);
    const told = pool.pause(HOLD);
    expect(pool.paused).toBe('keep');
    const call = pool.generate(REQUEST, never());
    await told;
    clock.advance(3_600_000);
    await settle();
    expect(engine.calls).toBe(0);
    await pool.resume();
    expect(pool.paused).toBeNull();
    await expect(call).resolves.toMatchObject({ engineId: 'a' });
    expect(engine.orders).toEqual(['keep', 'resume']);
  });

  test('refuses new calls where it shall, telling when to come back, and those held so far', async () => {
    const { pool } = rig(new ToyEngine('a', undefined, PAUSES));
    await pool.pause(HOLD);
    const held = pool.generate(REQUEST, never());
    await settle();
    const refused = expect(held).rejects.toMatchObject({ code: 'overloaded' });
    await pool.pause(REJECT);
    await refused;
    await expect(pool.generate(REQUEST, never())).rejects.toMatchObject({
      code: 'overloaded',
      details: { paused: true, retry_after_ms: expect.any(Number) },
    });
    await pool.resume();
    await expect(pool.generate(REQUEST, never())).resolves.toMatchObject({ engineId: 'a' });
  });

  test('lets calls under way go on, and look-ups through', async () => {
    const engine = ToyEngine.held('a', PAUSES);
    const { pool } = rig(engine);
    const call = pool.generate(REQUEST, never());
    await settle();
    await pool.pause(REJECT);
    await expect(pool.detokenize(Int32Array.of(1), REQUEST, never())).resolves.toBe('<1>');
    engine.pending[0]?.answer();
    await expect(call).resolves.toMatchObject({ engineId: 'a' });
  });

  test('is waited for by calls that it broke off before their first token, and is not held against the engine', async () => {
    const engine = ToyEngine.held('a', PAUSES);
    const { pool } = rig(engine);
    const calls = Array.from({ length: 4 }, () => pool.generate(REQUEST, never()));
    await settle();
    await pool.pause({ mode: 'abort', whilePaused: 'reject' });
    for (const { fail } of [...engine.pending]) fail(gone());
    await settle();
    expect(pool.info()[0]?.healthy).toBe(true);
    await pool.resume();
    await settle();
    for (const { answer } of [...engine.pending]) answer();
    await expect(Promise.all(calls)).resolves.toHaveLength(4);
    expect(engine.calls).toBe(8);
  });

  test('stops a call that is about to be tried again', async () => {
    const [a, b] = [ToyEngine.held('a', PAUSES), new ToyEngine('b', undefined, PAUSES)];
    const { pool, clock } = rig(a, b);
    const call = pool.generate(REQUEST, never());
    await settle();
    await pool.pause(HOLD);
    a.pending[0]?.fail(gone());
    clock.advance(120_000);
    await settle();
    expect(b.calls).toBe(0);
    await pool.resume();
    await expect(call).resolves.toMatchObject({ engineId: 'b' });
  });

  test('stops a call that was given a slot a moment before', async () => {
    const engine = new ToyEngine('a', undefined, PAUSES);
    const { pool } = rig(engine);
    const call = pool.generate(REQUEST, never());
    const told = pool.pause(HOLD);
    await settle();
    expect(engine.calls).toBe(0);
    await told;
    await pool.resume();
    await call;
  });

  test('ends the waiting of a call whose signal aborts', async () => {
    const { pool } = rig(new ToyEngine('a', undefined, PAUSES));
    const controller = new AbortController();
    await pool.pause(HOLD);
    const call = pool.generate(REQUEST, controller.signal);
    await settle();
    controller.abort(new Error('left'));
    await expect(call).rejects.toThrow('left');
  });

  test('may come twice, and resuming without one is nothing', async () => {
    const engine = new ToyEngine('a', undefined, PAUSES);
    const { pool } = rig(engine);
    await pool.resume();
    await pool.pause(HOLD);
    await pool.pause({ mode: 'abort', whilePaused: 'hold' });
    expect(pool.paused).toBe('abort');
    await pool.resume();
    await pool.resume();
    expect(engine.orders).toEqual(['keep', 'abort', 'resume']);
  });

  test('that comes while engines are being resumed stays', async () => {
    const engine = new ToyEngine('a', undefined, PAUSES);
    const { pool } = rig(engine);
    await pool.pause(HOLD);
    await Promise.all([pool.resume(), pool.pause(REJECT)]);
    expect(pool.paused).toBe('keep');
    expect(engine.orders).toEqual(['keep', 'resume', 'keep']);
    await expect(pool.generate(REQUEST, never())).rejects.toMatchObject({ code: 'overloaded' });
  });

  test('tells what becomes of calls at an engine that cannot pause', async () => {
    const engine = ToyEngine.held('a');
    const { pool, notices } = rig(engine);
    const call = pool.generate(REQUEST, never());
    await settle();
    await pool.pause({ mode: 'abort', whilePaused: 'hold' });
    expect(notices).toEqual([expect.stringMatching(/does not support pausing.*run to their end.*"inflight":1/)]);
    expect(engine.pending[0]?.signal.aborted).toBe(false);
    engine.pending[0]?.answer();
    await call;
    await pool.resume();
    expect(engine.orders).toEqual([]);
  });

  test('that an engine refuses is an error that names it, after all have been told', async () => {
    const [a, b] = [new ToyEngine('a', undefined, PAUSES), new ToyEngine('b', undefined, PAUSES)];
    a.onOrder = () => Promise.reject(new FloeError('engine_error', 'engine a: no', { engine_id: 'a' }));
    const { pool } = rig(a, b);
    await expect(pool.pause(HOLD)).rejects.toMatchObject({ code: 'engine_error', details: { engine_id: 'a' } });
    expect(b.orders).toEqual(['keep']);
    expect(pool.paused).toBe('keep');
  });

  test('is not refused for an engine that is away or silent', async () => {
    const [away, silent] = [new ToyEngine('a', undefined, PAUSES), new ToyEngine('b', undefined, PAUSES)];
    away.onOrder = () => Promise.reject(gone());
    silent.onOrder = () => new Promise(() => {});
    const { pool, clock, notices } = rig(away, silent);
    await through(clock, pool.pause(HOLD));
    expect(notices.map((notice) => notice.includes('an engine did not pause'))).toEqual([true, true]);
  });
});

describe('an engine that cannot be told to go on', () => {
  test('gets no call until it does', async () => {
    const [stuck, other] = [new ToyEngine('a', undefined, PAUSES), new ToyEngine('b', undefined, PAUSES)];
    const { pool } = rig(stuck, other);
    await pool.pause(HOLD);
    const resumable = false;
    stuck.onOrder = async () => {
      if (!resumable) throw new FloeError('engine_error', 'engine a: still loading');
    };
    await expect(pool.resume()).rejects.toMatchObject({ code: 'engine_error', message: /still loading/ });
    expect(pool.paused).toBeNull();
    for (let i = 0; i < 3; i++) {
      await expect(pool.generate(REQUEST, never())).resolves.toMatchObject({ engineId: 'b' });
    }
    expect(pool.info().map(({ healthy }) => healthy)).toEqual([false, true]);
    expect(stuck.calls).toBe(0);
  });

  test('is told again before its next call', async () => {
    const engine = new ToyEngine('a', undefined, PAUSES);
    const { pool, clock } = rig(engine);
    await pool.pause(HOLD);
    engine.onOrder = async () => {
      engine.onOrder = async () => {};
      throw gone();
    };
    await pool.resume();
    await expect(through(clock, pool.generate(REQUEST, never()))).resolves.toMatchObject({ engineId: 'a' });
    expect(engine.orders).toEqual(['keep', 'resume', 'resume']);
    expect(pool.info()[0]?.healthy).toBe(true);
  });
});

test('an engine that was left paused is not told to go on while the next pause holds', async () => {
  const engine = new ToyEngine('a', undefined, PAUSES);
  const { pool } = rig(engine);
  await pool.pause(HOLD);
  engine.onOrder = () => Promise.reject(gone());
  await pool.resume();
  engine.onOrder = async () => {};
  await pool.pause(HOLD);
  await pool.detokenize(Int32Array.of(1), REQUEST, never());
  expect(engine.orders).toEqual(['keep', 'resume', 'keep']);
  await pool.resume();
  await expect(pool.generate(REQUEST, never())).resolves.toMatchObject({ engineId: 'a' });
  expect(engine.orders).toEqual(['keep', 'resume', 'keep', 'resume']);
});

describe('the cache salt', () => {
  const salts = async (facts: ToyFacts, version: string | null): Promise<string | null | undefined> => {
    const engine = new ToyEngine('a', undefined, facts);
    const { pool } = rig(engine);
    if (version !== null) pool.setPolicyVersion(version);
    await pool.generate(REQUEST, never());
    return engine.requests[0]?.cacheSalt;
  };

  test('is the weights that the engine tells, else those that the pool was told', async () => {
    const can = { cache_salt: true };
    expect(await salts({ capabilities: can, version: 'own' }, 'told')).toBe('own');
    expect(await salts({ capabilities: can }, 'told')).toBe('told');
    expect(await salts({ capabilities: can }, null)).toBeNull();
  });

  test('is left out where the engine does not know it', async () => {
    expect(await salts({ version: 'own' }, 'told')).toBeNull();
  });
});
