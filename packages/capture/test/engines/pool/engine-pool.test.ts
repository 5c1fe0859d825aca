import { VirtualClock } from '@floe-rl/core';
import { type EnginePolicy, enginePolicySchema } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { EnginePools } from '../../../src/engines/pool/engine-pools.ts';
import { createEnginePools } from '../../../src/engines/pool/managed-engine-pools.ts';
import { never, REQUEST, settle, specOf, ToyEngine, ToyNetwork, unavailable } from './toy-engine.ts';

type Rig = { readonly pool: EnginePools; readonly clock: VirtualClock; readonly engines: Map<string, ToyEngine> };

/** Creates a pool of toy engines with the given number of slots. The engines leave their calls pending until a test answers them. */
async function rig(
  slots: Readonly<Record<string, number | null>>,
  policy: EnginePolicy = 'least_in_flight',
): Promise<Rig> {
  const clock = new VirtualClock();
  const network = new ToyNetwork();
  const engines = new Map<string, ToyEngine>();
  for (const id of Object.keys(slots)) {
    engines.set(id, ToyEngine.held(id));
    network.put(id, engines.get(id) as ToyEngine);
  }
  const specs = Object.entries(slots).map(([id, max_concurrency]) => specOf(id, { max_concurrency }));
  return { pool: await createEnginePools(specs, { clock, connect: network.connect, policy }), clock, engines };
}

const pendingOf = ({ engines }: Rig): number[] => [...engines.values()].map(({ pending }) => pending.length);

describe('EnginePool', () => {
  it("holds calls above an engine's concurrency, and releases them in the order of their arrival", async () => {
    const it = await rig({ a: 1, b: 1 });
    const served: number[] = [];
    const calls = Array.from({ length: 6 }, (_, i) =>
      it.pool
        .generate({ ...REQUEST, completionId: `cpl_${i}`, sessionId: `ses_${i}` }, never())
        .then(() => served.push(i)),
    );
    await settle();
    expect(pendingOf(it)).toEqual([1, 1]);
    expect(it.pool.info().map(({ inflight }) => inflight)).toEqual([1, 1]);
    const b = it.engines.get('b') as ToyEngine;
    // Engine b serves all five remaining calls, because the slot of engine a stays occupied.
    for (let i = 0; i < 5; i++) {
      b.pending[0]?.answer();
      await settle();
      expect(pendingOf(it)).toEqual([1, i < 4 ? 1 : 0]);
    }
    it.engines.get('a')?.pending[0]?.answer();
    await Promise.all(calls);
    expect(served.slice(1, 5)).toEqual([2, 3, 4, 5]);
  });

  it('does not hold look-ups', async () => {
    const it = await rig({ a: 1 });
    const call = it.pool.generate(REQUEST, never());
    await settle();
    await expect(it.pool.detokenize(Int32Array.of(4), REQUEST, never())).resolves.toBe('<4>');
    await expect(
      it.pool.render({ ...REQUEST, messageTexts: ['abc'], generationPrompt: true }, never()),
    ).resolves.toEqual(Int32Array.of(3));
    it.engines.get('a')?.pending[0]?.answer();
    await call;
  });

  it('lets calls wait for a slot longer than for an unavailable engine', async () => {
    const it = await rig({ a: 1 });
    const first = it.pool.generate(REQUEST, never());
    const second = it.pool.generate(REQUEST, never());
    await settle();
    it.clock.advance(600_000);
    it.engines.get('a')?.pending[0]?.answer();
    await first;
    await settle();
    it.engines.get('a')?.pending[0]?.fail(unavailable({ status: 429 }));
    await settle();
    it.clock.advance(200);
    await settle();
    it.engines.get('a')?.pending[0]?.answer();
    await expect(second).resolves.toMatchObject({ engineId: 'a' });
  });

  it('releases the slot of a call whose signal aborts while it waits, while it runs, or before', async () => {
    const it = await rig({ a: 1 });
    const controllers = [1, 2, 3].map(() => new AbortController());
    const calls = controllers.map(({ signal }) => it.pool.generate(REQUEST, signal));
    const outcomes = Promise.allSettled(calls);
    await settle();
    controllers[1]?.abort(new Error('waits'));
    controllers[0]?.abort(new Error('runs'));
    await settle();
    expect(pendingOf(it)).toEqual([1]);
    const before = it.pool.generate(REQUEST, AbortSignal.abort(new Error('before')));
    await expect(before).rejects.toThrow('before');
    controllers[2]?.abort(new Error('later'));
    const reasons = (await outcomes).map((outcome) => outcome.status === 'rejected' && String(outcome.reason));
    expect(reasons).toEqual(['Error: runs', 'Error: waits', 'Error: later']);
    expect(it.pool.info()[0]?.inflight).toBe(0);
    expect(it.engines.get('a')?.calls).toBe(2);
  });

  it('does not let calls wait for an engine that has left', async () => {
    const it = await rig({ a: 1, b: 1 }, 'assignment_count');
    const a = it.engines.get('a') as ToyEngine;
    const call = (name: string): Promise<unknown> => it.pool.generate({ ...REQUEST, completionId: name }, never());
    const calls = [call('first'), call('second'), call('third')];
    await settle();
    a.pending[0]?.fail(unavailable({ status: 429 }));
    await settle();
    it.pool.deregister('b');
    await settle();
    it.clock.advance(200);
    await settle();
    expect(a.pending[0]?.request.completionId).toBe('third');
    a.pending[0]?.answer();
    await settle();
    expect(a.pending[0]?.request.completionId).toBe('first');
    a.pending[0]?.answer();
    it.engines.get('b')?.pending[0]?.answer();
    await Promise.all(calls);
  });

  it('keeps the queue position of a call that is retried', async () => {
    const it = await rig({ a: 1 }, 'assignment_count');
    const a = it.engines.get('a') as ToyEngine;
    const order: string[] = [];
    const call = (name: string): Promise<unknown> =>
      it.pool.generate({ ...REQUEST, completionId: name }, never()).then(() => order.push(name));
    const calls = [call('first'), call('second'), call('third')];
    await settle();
    a.pending[0]?.fail(unavailable({ status: 429 }));
    await settle();
    expect(a.pending[0]?.request.completionId).toBe('second');
    it.clock.advance(200);
    await settle();
    a.pending[0]?.answer();
    await settle();
    expect(a.pending[0]?.request.completionId).toBe('first');
    a.pending[0]?.answer();
    await settle();
    a.pending[0]?.answer();
    await Promise.all(calls);
    expect(order).toEqual(['second', 'first', 'third']);
  });
});

/**
 * The test deregisters or pauses the engine after each of these numbers of microtasks. The largest number exceeds the number of microtasks
 * that any step of a call takes.
 */
const MICROTASKS = Array.from({ length: 25 }, (_, i) => i);

describe.each([['is deregistered'], ['is paused']])('an engine that %s', (what) => {
  const take = (pool: EnginePools): void => {
    if (what === 'is deregistered') pool.deregister('a');
    else void pool.pause({ mode: 'keep', whilePaused: 'hold' });
  };

  it.each([
    ['waits for a slot', async () => {}],
    ['is new', async (it: Rig, signal: AbortSignal) => void it.pool.generate(REQUEST, signal).catch(() => {})],
  ])('is not reached by a call that %s, at whatever time the change happens', async (_, begin) => {
    for (const microtasks of MICROTASKS) {
      const it = await rig({ a: 1 });
      const a = it.engines.get('a') as ToyEngine;
      const controller = new AbortController();
      const calls = [1, 2].map(() => it.pool.generate(REQUEST, controller.signal));
      await settle();
      a.pending[0]?.answer();
      await begin(it, controller.signal);
      for (let i = 0; i < microtasks; i++) await Promise.resolve();
      take(it.pool);
      const reached = a.calls;
      await settle();
      expect(a.calls).toBe(reached);
      const settled = Promise.allSettled(calls);
      controller.abort();
      await settled;
    }
  });
});

type Step =
  | { readonly kind: 'call'; readonly session: number }
  | { readonly kind: 'answer' | 'fail' | 'abort' | 'leave' | 'return'; readonly at: number }
  | { readonly kind: 'wait'; readonly ms: number };

const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 5, arbitrary: fc.record({ kind: fc.constant('call' as const), session: fc.nat(5) }) },
  {
    weight: 5,
    arbitrary: fc.record({
      kind: fc.constantFrom('answer' as const, 'fail' as const, 'abort' as const, 'leave' as const, 'return' as const),
      at: fc.nat(30),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('wait' as const), ms: fc.integer({ min: 1, max: 6_000 }) }) },
);

/** Applies random events to a pool: calls are sent, answered, failed and aborted, and engines are deregistered and registered. */
class Model {
  readonly it: Rig;
  readonly slots: Readonly<Record<string, number>>;
  readonly left = new Set<string>();
  readonly calls: { readonly controller: AbortController; readonly done: Promise<unknown> }[] = [];

  constructor(it: Rig, slots: Readonly<Record<string, number>>) {
    this.it = it;
    this.slots = slots;
  }

  async take(step: Step): Promise<void> {
    const { pool, clock } = this.it;
    if (step.kind === 'call') {
      const controller = new AbortController();
      const done = pool.generate({ ...REQUEST, sessionId: `ses_${step.session}` }, controller.signal).catch(() => {});
      this.calls.push({ controller, done });
    } else if (step.kind === 'wait') clock.advance(step.ms);
    else if (step.kind === 'abort') this.calls[step.at % (this.calls.length || 1)]?.controller.abort();
    else if (step.kind === 'answer' || step.kind === 'fail') {
      const pending = [...this.it.engines.values()].flatMap((engine) => engine.pending);
      const call = pending[step.at % (pending.length || 1)];
      if (step.kind === 'answer') call?.answer();
      else call?.fail(unavailable());
    } else this.move(step.kind, step.at);
    await settle();
  }

  private move(kind: 'leave' | 'return', at: number): void {
    const id = Object.keys(this.slots)[at % Object.keys(this.slots).length] as string;
    if (kind === 'leave') {
      this.it.pool.deregister(id, { abort: at % 2 === 0 });
      this.left.add(id);
    } else {
      this.left.delete(id);
      void this.it.pool.register(specOf(id, { max_concurrency: this.slots[id] as number }));
    }
  }

  check(): void {
    for (const info of this.it.pool.info()) {
      expect(info.inflight).toBeLessThanOrEqual(this.slots[info.engine_id] as number);
      expect(this.left.has(info.engine_id)).toBe(false);
    }
  }

  /** Aborts all calls, waits until they have ended, and asserts that no slot is still taken. */
  async drain(): Promise<void> {
    for (const { controller } of this.calls) controller.abort();
    await Promise.all(this.calls.map(({ done }) => done));
    for (const { inflight } of this.it.pool.info()) expect(inflight).toBe(0);
  }
}

it.each(enginePolicySchema.options)(
  'the policy %s neither loses nor duplicates a slot, and settles every call, in any order of events',
  async (policy) => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 40 }), async (steps) => {
        const slots = { a: 1, b: 2, c: 3 };
        const model = new Model(await rig(slots, policy), slots);
        const sentCall = new Map<string, number>();
        for (const next of steps) {
          for (const id of model.left) sentCall.set(id, model.it.engines.get(id)?.calls ?? 0);
          const stillLeft = [...model.left];
          await model.take(next);
          model.check();
          for (const id of stillLeft) {
            if (model.left.has(id)) expect(model.it.engines.get(id)?.calls).toBe(sentCall.get(id));
          }
        }
        await model.drain();
      }),
      { numRuns: 40 },
    );
  },
);

it('a call waits while no slot is free, and runs as soon as one is', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.integer({ min: 1, max: 3 }), { minLength: 1, maxLength: 4 }),
      fc.integer({ min: 0, max: 15 }),
      async (sizes, count) => {
        const it = await rig(Object.fromEntries(sizes.map((size, i) => [`e${i}`, size])));
        const total = sizes.reduce((sum, size) => sum + size, 0);
        const calls = Array.from({ length: count }, (_, i) =>
          it.pool.generate({ ...REQUEST, sessionId: `ses_${i}` }, never()),
        );
        for (let left = count; left > 0; left--) {
          await settle();
          const busy = pendingOf(it).reduce((sum, pending) => sum + pending, 0);
          expect(busy).toBe(Math.min(left, total));
          [...it.engines.values()].find(({ pending }) => pending.length > 0)?.pending[0]?.answer();
        }
        await Promise.all(calls);
      },
    ),
    { numRuns: 25 },
  );
});
