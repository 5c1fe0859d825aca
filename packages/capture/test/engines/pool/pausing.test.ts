import { FloeError, VirtualClock } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import type { EnginePools } from '../../../src/engines/pool/engine-pools.ts';
import { enginePoolsOf } from '../../../src/engines/pool/managed-engine-pools.ts';
import {
  never,
  REQUEST,
  settle,
  specOf,
  ToyEngine,
  type ToyFacts,
  ToyNetwork,
  through,
  unavailable,
} from './toy-engine.ts';

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

describe('pause', () => {
  it('holds new calls from the moment that it is called until it ends', async () => {
    const engine = new ToyEngine('a', undefined, PAUSES);
    const { pool, clock } = rig(engine);
    const answers = pool.pause(HOLD);
    expect(pool.paused).toBe('keep');
    const call = pool.generate(REQUEST, never());
    await answers;
    clock.advance(3_600_000);
    await settle();
    expect(engine.calls).toBe(0);
    await pool.resume();
    expect(pool.paused).toBeNull();
    await expect(call).resolves.toMatchObject({ engineId: 'a' });
    expect(engine.orders).toEqual(['keep', 'resume']);
  });

  it('rejects new and held calls with reject, with the time to retry after', async () => {
    const { pool } = rig(new ToyEngine('a', undefined, PAUSES));
    await pool.pause(HOLD);
    const held = pool.generate(REQUEST, never());
    await settle();
    const refused = expect(held).rejects.toMatchObject({ code: 'overloaded' });
    await pool.pause(REJECT);
    await refused;
    await expect(pool.generate(REQUEST, never())).rejects.toMatchObject({
      code: 'overloaded',
      message: 'the engines are paused for a weight update; try again',
      details: { paused: true, retry_after_ms: expect.any(Number) },
    });
    await pool.resume();
    await expect(pool.generate(REQUEST, never())).resolves.toMatchObject({ engineId: 'a' });
  });

  it('lets calls in flight continue, and admits look-ups', async () => {
    const engine = ToyEngine.held('a', PAUSES);
    const { pool } = rig(engine);
    const call = pool.generate(REQUEST, never());
    await settle();
    await pool.pause(REJECT);
    await expect(pool.detokenize(Int32Array.of(1), REQUEST, never())).resolves.toBe('<1>');
    engine.pending[0]?.answer();
    await expect(call).resolves.toMatchObject({ engineId: 'a' });
  });

  it('holds calls that it aborted before their first token, and does not count that against the engine', async () => {
    const engine = ToyEngine.held('a', PAUSES);
    const { pool } = rig(engine);
    const calls = Array.from({ length: 4 }, () => pool.generate(REQUEST, never()));
    await settle();
    await pool.pause({ mode: 'abort', whilePaused: 'reject' });
    for (const { fail } of [...engine.pending]) fail(unavailable());
    await settle();
    expect(pool.info()[0]?.healthy).toBe(true);
    await pool.resume();
    await settle();
    for (const { answer } of [...engine.pending]) answer();
    await expect(Promise.all(calls)).resolves.toHaveLength(4);
    expect(engine.calls).toBe(8);
  });

  it('holds a call that is about to be retried', async () => {
    const [a, b] = [ToyEngine.held('a', PAUSES), new ToyEngine('b', undefined, PAUSES)];
    const { pool, clock } = rig(a, b);
    const call = pool.generate(REQUEST, never());
    await settle();
    await pool.pause(HOLD);
    a.pending[0]?.fail(unavailable());
    clock.advance(120_000);
    await settle();
    expect(b.calls).toBe(0);
    await pool.resume();
    await expect(call).resolves.toMatchObject({ engineId: 'b' });
  });

  it('holds a call that was just granted a slot', async () => {
    const engine = new ToyEngine('a', undefined, PAUSES);
    const { pool } = rig(engine);
    const call = pool.generate(REQUEST, never());
    const answers = pool.pause(HOLD);
    await settle();
    expect(engine.calls).toBe(0);
    await answers;
    await pool.resume();
    await call;
  });

  it('stops holding a call whose signal aborts', async () => {
    const { pool } = rig(new ToyEngine('a', undefined, PAUSES));
    const controller = new AbortController();
    await pool.pause(HOLD);
    const call = pool.generate(REQUEST, controller.signal);
    await settle();
    controller.abort(new Error('left'));
    await expect(call).rejects.toThrow('left');
  });

  it('may be called twice, and resume without a pause has no effect', async () => {
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

  it('stays in effect when it is called while engines are being resumed', async () => {
    const engine = new ToyEngine('a', undefined, PAUSES);
    const { pool } = rig(engine);
    await pool.pause(HOLD);
    await Promise.all([pool.resume(), pool.pause(REJECT)]);
    expect(pool.paused).toBe('keep');
    expect(engine.orders).toEqual(['keep', 'resume', 'keep']);
    await expect(pool.generate(REQUEST, never())).rejects.toMatchObject({ code: 'overloaded' });
  });

  it('notifies about the calls of an engine that does not support pausing', async () => {
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

  it('rejects with an error naming the engine that refused, after every engine was sent the pause', async () => {
    const [a, b] = [new ToyEngine('a', undefined, PAUSES), new ToyEngine('b', undefined, PAUSES)];
    a.onOrder = () => Promise.reject(new FloeError('engine_error', 'engine a: no', { engine_id: 'a' }));
    const { pool } = rig(a, b);
    await expect(pool.pause(HOLD)).rejects.toMatchObject({ code: 'engine_error', details: { engine_id: 'a' } });
    expect(b.orders).toEqual(['keep']);
    expect(pool.paused).toBe('keep');
  });

  it('does not reject because of an engine that is unreachable or unresponsive', async () => {
    const [away, silent] = [new ToyEngine('a', undefined, PAUSES), new ToyEngine('b', undefined, PAUSES)];
    away.onOrder = () => Promise.reject(unavailable());
    silent.onOrder = () => new Promise(() => {});
    const { pool, clock, notices } = rig(away, silent);
    await through(clock, pool.pause(HOLD));
    expect(notices.map((notice) => notice.includes('an engine did not pause'))).toEqual([true, true]);
  });
});

describe('resume', () => {
  it('resumes an engine that was removed during the pause while the replies that the pause froze have not ended', async () => {
    const [busy, idle] = [ToyEngine.held('a', PAUSES), new ToyEngine('b', undefined, PAUSES)];
    const { pool } = rig(busy, idle);
    const call = pool.generate(REQUEST, never());
    await settle();
    await pool.pause(HOLD);
    pool.deregister(null);
    busy.onOrder = async (order) => {
      if (order === 'resume') busy.pending[0]?.answer();
    };
    await pool.resume();
    expect([busy, idle].map(({ orders }) => orders)).toEqual([['keep', 'resume'], ['keep']]);
    await expect(call).resolves.toMatchObject({ engineId: 'a' });
  });

  it('resumes an engine that was registered during the pause, because its server may have been paused before', async () => {
    const [network, clock] = [new ToyNetwork(), new VirtualClock()];
    const server = new ToyEngine('a', undefined, PAUSES);
    network.put('a', server);
    const pool = enginePoolsOf([], { clock, connect: network.connect });
    await pool.register(specOf('a'));
    await pool.pause(HOLD);
    pool.deregister('a');
    await pool.register(specOf('a'));
    await pool.resume();
    expect(server.orders).toEqual(['keep', 'resume']);
  });
});

describe('an engine that was not resumed', () => {
  it('gets no call until it resumes', async () => {
    const [stuck, other] = [new ToyEngine('a', undefined, PAUSES), new ToyEngine('b', undefined, PAUSES)];
    const { pool } = rig(stuck, other);
    await pool.pause(HOLD);
    const resumable = false;
    stuck.onOrder = async () => {
      if (!resumable) throw new FloeError('engine_error', 'engine a: still loading');
    };
    await expect(pool.resume()).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining('still loading'),
    });
    expect(pool.paused).toBeNull();
    for (let i = 0; i < 3; i++) {
      await expect(pool.generate(REQUEST, never())).resolves.toMatchObject({ engineId: 'b' });
    }
    expect(pool.info().map(({ healthy }) => healthy)).toEqual([false, true]);
    expect(stuck.calls).toBe(0);
  });

  it('is sent the resume once more before its next call', async () => {
    const engine = new ToyEngine('a', undefined, PAUSES);
    const { pool, clock } = rig(engine);
    await pool.pause(HOLD);
    engine.onOrder = async () => {
      engine.onOrder = async () => {};
      throw unavailable();
    };
    await pool.resume();
    await expect(through(clock, pool.generate(REQUEST, never()))).resolves.toMatchObject({ engineId: 'a' });
    expect(engine.orders).toEqual(['keep', 'resume', 'resume']);
    expect(pool.info()[0]?.healthy).toBe(true);
  });
});

it('an engine that was not resumed is not sent a resume during the next pause', async () => {
  const engine = new ToyEngine('a', undefined, PAUSES);
  const { pool } = rig(engine);
  await pool.pause(HOLD);
  engine.onOrder = () => Promise.reject(unavailable());
  await pool.resume();
  engine.onOrder = async () => {};
  await pool.pause(HOLD);
  await pool.detokenize(Int32Array.of(1), REQUEST, never());
  expect(engine.orders).toEqual(['keep', 'resume', 'keep']);
  await pool.resume();
  await expect(pool.generate(REQUEST, never())).resolves.toMatchObject({ engineId: 'a' });
  expect(engine.orders).toEqual(['keep', 'resume', 'keep', 'resume']);
});

describe('the policy version of a call', () => {
  const versionOf = async (facts: ToyFacts, assigned: string | null): Promise<string | null | undefined> => {
    const engine = new ToyEngine('a', undefined, facts);
    const { pool } = rig(engine);
    if (assigned !== null) pool.setPolicyVersion(assigned);
    await pool.generate(REQUEST, never());
    return engine.requests[0]?.policyVersion;
  };

  it('is the version that the engine reports, or else the one that the pools were given', async () => {
    expect(await versionOf({ version: 'own' }, 'assigned')).toBe('own');
    expect(await versionOf({}, 'assigned')).toBe('assigned');
    expect(await versionOf({}, null)).toBeNull();
  });

  it('is requested when the pause that held the call has ended', async () => {
    const engine = new ToyEngine('a', undefined, { ...PAUSES, version: 'v0' });
    const { pool } = rig(engine);
    await pool.pause(HOLD);
    const calls = Array.from({ length: 8 }, () => pool.generate(REQUEST, never()));
    await settle();
    engine.facts = { ...PAUSES, version: 'v1' };
    await pool.resume();
    await Promise.all(calls);
    expect(engine.requests.map(({ policyVersion }) => policyVersion)).toEqual(Array(8).fill('v1'));
  });

  it('is requested once more when a pause begins while the engine is asked for it', async () => {
    const engine = new ToyEngine('a', undefined, { ...PAUSES, version: 'v0' });
    const { pool } = rig(engine);
    const answers: ((version: string) => void)[] = [];
    engine.policyVersion = () => new Promise((resolve) => answers.push(resolve));
    const call = pool.generate(REQUEST, never());
    await settle();
    await pool.pause(HOLD);
    answers[0]?.('v0');
    await settle();
    expect(engine.calls).toBe(0);
    await pool.resume();
    await settle();
    answers[1]?.('v1');
    await call;
    expect(engine.requests.map(({ policyVersion }) => policyVersion)).toEqual(['v1']);
  });

  it('stops being awaited when the signal of the call aborts', async () => {
    const engine = new ToyEngine('a');
    const { pool } = rig(engine);
    engine.policyVersion = () => new Promise(() => {});
    const controller = new AbortController();
    const call = pool.generate(REQUEST, controller.signal);
    await settle();
    controller.abort(new Error('left'));
    await expect(call).rejects.toThrow('left');
    expect(pool.info()[0]?.inflight).toBe(0);
  });
});

describe('the weights may have changed', () => {
  it('when an engine that cannot be paused, or that refused, is paused, and when engines are resumed', async () => {
    const [silent, refusing, paused] = [
      new ToyEngine('a'),
      new ToyEngine('b', undefined, PAUSES),
      new ToyEngine('c', undefined, PAUSES),
    ];
    refusing.onOrder = () => Promise.reject(new FloeError('engine_error', 'engine b: no'));
    const { pool } = rig(silent, refusing, paused);
    await expect(pool.pause(HOLD)).rejects.toThrow('engine b: no');
    expect([silent, refusing, paused].map(({ weightChanges }) => weightChanges)).toEqual([1, 1, 0]);
    refusing.onOrder = async () => {};
    await pool.resume();
    expect([silent, refusing, paused].map(({ weightChanges }) => weightChanges)).toEqual([2, 2, 1]);
  });

  it('and are named for an engine that was removed while calls are running on it', async () => {
    const engine = ToyEngine.held('a');
    const { pool } = rig(engine);
    const call = pool.generate(REQUEST, never());
    await settle();
    pool.deregister('a');
    await pool.pause(HOLD);
    pool.setPolicyVersion('v1');
    expect(engine).toMatchObject({ weightChanges: 1, versions: ['v1'] });
    engine.pending[0]?.answer();
    await call;
  });
});

describe('the engines that a pause does not stop', () => {
  it('are those that cannot be paused, with the number of replies that are running, until these have ended', async () => {
    const [silent, idle, paused] = [ToyEngine.held('a'), new ToyEngine('b'), ToyEngine.held('c', PAUSES)];
    const { pool } = rig(silent, idle, paused);
    const calls = ['s1', 's2', 's3'].map((sessionId) => pool.generate({ ...REQUEST, sessionId }, never()));
    await settle();
    expect(pool.unpaused).toEqual([]);
    await pool.pause(HOLD);
    expect(pool.unpaused).toEqual([
      { engineId: 'a', message: 'it cannot be paused; replies that are running on it: 1' },
    ]);
    silent.pending[0]?.answer();
    await settle();
    expect(pool.unpaused).toEqual([]);
    paused.pending[0]?.answer();
    await pool.resume();
    await Promise.all(calls);
  });

  it('are those that refused the pause, until the next pause', async () => {
    const engine = new ToyEngine('a', undefined, PAUSES);
    const { pool } = rig(engine);
    engine.onOrder = () => Promise.reject(new FloeError('engine_error', 'engine a: no'));
    await expect(pool.pause(HOLD)).rejects.toThrow('engine a: no');
    expect(pool.unpaused).toEqual([
      { engineId: 'a', message: 'it did not pause: engine a: no; replies that are running on it: 0' },
    ]);
    engine.onOrder = async () => {};
    await pool.pause(HOLD);
    expect(pool.unpaused).toEqual([]);
  });

  it('are those that were removed and on which replies are running', async () => {
    const engine = ToyEngine.held('a', PAUSES);
    const { pool } = rig(engine);
    const call = pool.generate(REQUEST, never());
    await settle();
    pool.deregister('a');
    await pool.pause(HOLD);
    expect(pool.unpaused).toEqual([
      { engineId: 'a', message: 'it was removed and is not paused; replies that are running on it: 1' },
    ]);
    engine.pending[0]?.answer();
    await call;
    expect(pool.unpaused).toEqual([]);
  });
});
