import { FloeError, VirtualClock } from '@floe-rl/core';
import { runtimeSpecSchema } from '@floe-rl/core/schema';
import { silentLogger } from '@floe-rl/observe';
import type { Runtime, StartRequest } from '@floe-rl/sandbox';
import { describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import {
  bubblewrapMissing,
  never,
  processesThatMount,
  Workbench,
} from '../../../../../sandbox/test/backends/workbench.ts';
import { PrewarmedRuntimes } from '../../../../src/gateway/session/prewarmed-runtimes.ts';
import { runSession } from '../../../../src/gateway/session/session-runner.ts';
import { ask, closed, prewarm, serve } from '../../../gateway/reuse-bench.ts';
import { bench, ENDED_WELL, fakeSockets, runtimeOf, settle } from '../../../gateway/session-bench.ts';

type SpecInput = Parameters<typeof runtimeSpecSchema.parse>[0] & object;

function requestOf(spec: SpecInput = {}): StartRequest {
  const proxy = { socketPath: 'own', tcpOrigin: 'http://127.0.0.1:1' };
  return { name: 'own', spec: runtimeSpecSchema.parse(spec), proxy, readOnlyMounts: [] };
}

/** Fake sandboxes that are started in advance. */
function fakes(
  options: { readonly count?: number; readonly maxMb?: number; readonly start?: () => Promise<Runtime> } = {},
) {
  const clock = new VirtualClock();
  const alive = new Set<Runtime>();
  const directories = new Set<string>();
  const started: StartRequest[] = [];
  const prewarmed = new PrewarmedRuntimes({
    clock,
    log: silentLogger,
    count: options.count ?? 1,
    maxMb: options.maxMb ?? 100_000,
    idleMs: 60_000,
    sockets: fakeSockets(directories),
    sandboxes: {
      awaitPermit: async () => () => {},
      start: async (request) => {
        started.push(request);
        return options.start?.() ?? { ...runtimeOf(async () => ENDED_WELL, alive), exec: async () => ENDED_WELL };
      },
    },
    openEgress: async () => null,
  });
  const replenish = async (spec?: SpecInput): Promise<void> => {
    prewarmed.replenish(requestOf(spec));
    await settle();
  };
  const take = (spec?: SpecInput) => prewarmed.take(requestOf(spec), never);
  return { clock, alive, directories, started, prewarmed, replenish, take };
}

describe('PrewarmedRuntimes', () => {
  it('keeps the configured number of sandboxes for the settings of recent sessions, whatever they prepare', async () => {
    const { replenish, take, started } = fakes({ count: 2 });
    expect(await take()).toBe(null);
    await replenish();
    await replenish();
    expect(started).toHaveLength(2);
    expect(await take({ memory_mb: 99 })).toBe(null);
    const prepare = [{ type: 'exec' as const, command: 'x' }];
    const warm = await take({ prepare });
    expect(warm?.place.socketPath).toBe(started[0]?.proxy?.socketPath);
    await replenish({ prepare });
    expect(started).toHaveLength(3);
    expect(started.map(({ spec }) => spec.prepare.length)).toEqual([0, 0, 1]);
  });

  it('has none for sessions that start from prepared files', async () => {
    const { replenish, take, started } = fakes();
    await replenish();
    const shared = { share_prepared: true, prepare: [{ type: 'exec' as const, command: 'x' }] };
    for (const spec of [shared, { reuse: {} }]) {
      expect(await take(spec)).toBe(null);
      await replenish(spec);
    }
    expect(started).toHaveLength(1);
  });

  it('ends the sandboxes of other settings when the memory is used up', async () => {
    const { replenish, take, prewarmed } = fakes({ maxMb: 1000 });
    const of = (memory_mb: number): SpecInput => ({ memory_mb, storage_mb: 100 });
    await replenish(of(400));
    await replenish(of(500));
    expect(prewarmed.sandboxes).toHaveLength(1);
    expect(await take(of(400))).toBe(null);
    await replenish(of(901));
    expect(await take(of(901))).toBe(null);
    expect(await take(of(500))).not.toBe(null);
  });

  it('ends sandboxes after the idle time, and reports the activity of a session that got one', async () => {
    const { replenish, take, clock, prewarmed, alive, directories, started } = fakes();
    await replenish();
    clock.advance(60_000);
    await settle();
    expect([prewarmed.sandboxes, alive.size, directories.size]).toEqual([[], 0, 0]);
    await replenish();
    const warm = await take();
    let count = 0;
    started[1]?.onActivity?.();
    warm?.give({ onActivity: () => count++ });
    started[1]?.onActivity?.();
    expect(count).toBe(1);
    clock.advance(60_000);
    await settle();
    expect(prewarmed.sandboxes).toHaveLength(1);
    if (warm !== null) prewarmed.release(warm);
    await settle();
    expect([prewarmed.sandboxes, directories.size]).toEqual([[], 0]);
  });

  it('gives no session a sandbox that has ended', async () => {
    const { replenish, take, prewarmed } = fakes({
      start: async () => ({
        ...runtimeOf(async () => ENDED_WELL, new Set()),
        exec: () => Promise.reject(new FloeError('runtime_failed', 'the spawn helper died')),
      }),
    });
    await replenish();
    expect(await take()).toBe(null);
    await settle();
    expect(prewarmed.sandboxes).toEqual([]);
  });

  it('leaves nothing when a start fails, and when the node drains and closes', async () => {
    const failing = fakes({ start: () => Promise.reject(new Error('no image')) });
    await failing.replenish();
    expect([failing.prewarmed.sandboxes, failing.directories.size]).toEqual([[], 0]);
    const { replenish, take, prewarmed, alive, directories } = fakes({ count: 2 });
    await replenish();
    await take();
    await prewarmed.drain();
    expect(alive.size).toBe(1);
    await replenish();
    expect(prewarmed.sandboxes).toHaveLength(1);
    await prewarmed.close();
    expect([prewarmed.sandboxes, alive.size, directories.size]).toEqual([[], 0, 0]);
  });

  it('has a sandbox ready for the second session of a node', async () => {
    const { prewarmed, started } = fakes();
    const sessions = [];
    for (let i = 0; i < 2; i++) {
      const names: string[] = [];
      const { attempt, deps } = bench({
        task: { evaluator: null },
        start: async (_purpose, { name }) => {
          names.push(name);
          return runtimeOf(async () => ENDED_WELL, new Set());
        },
      });
      const result = await runSession(attempt, { ...deps, prewarmed });
      await settle();
      sessions.push([result?.summary.outcome, names]);
    }
    expect(sessions).toEqual([
      ['completed', ['ses_1-1-agent']],
      ['completed', []],
    ]);
    expect(started).toHaveLength(2);
    expect(prewarmed.sandboxes).toEqual([started[1]?.name]);
  });
});

describeIf(await bubblewrapMissing(), 'a bubblewrap sandbox that was started in advance', () => {
  it("reaches the proxy of the session that gets it, and is gone when this node's sandboxes are closed", async () => {
    const workbench = await Workbench.open();
    const { prewarmed, warm } = await prewarm(workbench, 'bubblewrap', runtimeSpecSchema.parse({}));
    const { runtime, place } = warm;
    const server = await serve(place.socketPath, 'mine');
    expect(await ask(runtime, runtime.proxyOrigin)).toBe('mine\n');
    await closed(server);
    await prewarmed.close();
    expect(await workbench.sessionDirs()).toEqual([]);
    expect(await processesThatMount(workbench.stateDir)).toEqual([]);
    await workbench.close();
  });
});
