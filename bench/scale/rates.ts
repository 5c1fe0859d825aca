// Measures how fast a server accepts, leases and completes sessions, and the CPU time and memory that each session costs.
import type { FloeClient } from '@floe-rl/client';
import { sleep, systemClock } from '@floe-rl/core';
import type { TaskRequestInput } from '@floe-rl/core/schema';
import type { PoolSizes } from '#node/gateway/node/config';
import { inParallel } from '../child.ts';
import { GROUP } from './finished-rows.ts';
import { type ServerOptions, type Usage, usageOf, withServer } from './processes.ts';

/** Number of task submissions that run concurrently. */
export const SUBMITTERS = 16;
/** Number of workers in each stage of a node in the rate measurement. */
export const WIDTH = 64;

/** Maximum time in ms to wait until the expected numbers of sessions are queued and running. */
const SETTLE_MS = 60_000;

export const task = (num_samples: number, over: Partial<TaskRequestInput> = {}): TaskRequestInput => ({
  instruction: 'Fix the failing test in the repository at /work and explain what was wrong with it.',
  num_samples,
  agent: { harness: 'shell', custom_shell: 'true' },
  ...over,
});

export const pools = (size: number): PoolSizes => ({ init: size, ready: size, run: size, postrun: size });

export type SubmitFigures = { readonly perSecond: number; readonly cpuMsEach: number };

/**
 * Measures how many sessions per second a server without nodes accepts and stores durably: first in tasks of {@link GROUP} samples, then in
 * tasks of one sample.
 */
export function submitRate(sessions: number): Promise<{ grouped: SubmitFigures; single: SubmitFigures }> {
  return withServer({}, async ({ client, server }) => {
    const submit = (count: number, num_samples: number): Promise<void> =>
      inParallel(count, SUBMITTERS, () => client.submit(task(num_samples)));
    await submit(50, GROUP);
    const measure = async (tasks: number, num_samples: number): Promise<SubmitFigures> => {
      const before = await usageOf(server);
      const start = systemClock.monotonicMs();
      await submit(tasks, num_samples);
      const seconds = (systemClock.monotonicMs() - start) / 1000;
      const { cpuMs } = await usageOf(server);
      return { perSecond: (tasks * num_samples) / seconds, cpuMsEach: (cpuMs - before.cpuMs) / (tasks * num_samples) };
    };
    return { grouped: await measure(sessions / GROUP, GROUP), single: await measure(sessions / GROUP, 1) };
  });
}

export type LifeFigures = {
  readonly perSecond: number;
  readonly serverCpuMsEach: number;
  readonly nodesCpuMsEach: number;
  readonly clientCpuMsEach: number;
};

/** Number of nodes that run the sessions of a rate measurement. */
const NODES = 2;

/** Measures the rate at which sessions without work pass through submission, lease, all stages, delivery and collection. */
export function lifeRate(sessions: number, store: ServerOptions): Promise<LifeFigures> {
  return withServer(store, async ({ client, server, startNode }) => {
    const started = await Promise.all(
      Array.from({ length: NODES }, (_, i) => startNode({ nodeId: `node-${i}`, mode: 'noop', pools: pools(WIDTH) })),
    );
    let after = 0;
    const run = async (count: number): Promise<void> => {
      const submitted = inParallel(count / GROUP, SUBMITTERS, () => client.submit(task(GROUP)));
      let collected = 0;
      for await (const result of client.results({ after, pageSize: 500 })) {
        if (result.outcome !== 'completed') throw new Error(`${result.outcome}: ${result.error?.message}`);
        after = result.cursor ?? after;
        if (++collected === count) break;
      }
      await submitted;
    };
    await run(50 * GROUP);
    const cpuOfNodes = async (): Promise<number> => {
      const usages = await Promise.all(started.map(usageOf));
      return usages.reduce((total, { cpuMs }) => total + cpuMs, 0);
    };
    const [serverBefore, nodesBefore, ownBefore] = [await usageOf(server), await cpuOfNodes(), process.cpuUsage()];
    const start = systemClock.monotonicMs();
    await run(sessions);
    const seconds = (systemClock.monotonicMs() - start) / 1000;
    const own = process.cpuUsage(ownBefore);
    return {
      perSecond: sessions / seconds,
      serverCpuMsEach: ((await usageOf(server)).cpuMs - serverBefore.cpuMs) / sessions,
      nodesCpuMsEach: ((await cpuOfNodes()) - nodesBefore) / sessions,
      clientCpuMsEach: (own.user + own.system) / 1000 / sessions,
    };
  });
}

export type MemoryFigures = {
  readonly liveKb: number;
  readonly queuedKb: number;
  readonly allKb: number;
  readonly allHeapKb: number;
};

/** Measures the server's memory per queued and per running session, in KiB. */
export function memory({ queued, live }: { readonly queued: number; readonly live: number }): Promise<MemoryFigures> {
  return withServer({}, async ({ client, server, startNode }) => {
    const submit = (sessions: number): Promise<void> =>
      inParallel(sessions / GROUP, SUBMITTERS, () => client.submit(task(GROUP, HELD)));
    const usageWhen = (queuedCount: number, liveCount: number): Promise<Usage> =>
      untilCounts(client, queuedCount, liveCount).then(() => usageOf(server));
    // Starts the node and runs one session before the measurement, so that the memory of connections and caches does not count as memory of
    // sessions.
    const node = await startNode({ nodeId: 'node', mode: 'staged', pools: { ...pools(32), ready: 0, run: live } });
    await client.submit(task(1, { ...HELD, metadata: { init_ms: 1, run_ms: 1, postrun_ms: 1 } }));
    const idle = await usageWhen(0, 0);
    await submit(live);
    const withLive = await usageWhen(0, live);
    await submit(queued);
    const withAll = await usageWhen(queued, live);
    await node.close();
    const kb = (from: Usage, to: Usage, count: number, what: 'rss' | 'heap'): number =>
      (to[what] - from[what]) / 1024 / count;
    return {
      liveKb: kb(idle, withLive, live, 'rss'),
      queuedKb: kb(withLive, withAll, queued, 'rss'),
      allKb: kb(idle, withAll, live + queued, 'rss'),
      allHeapKb: kb(idle, withAll, live + queued, 'heap'),
    };
  });
}

/** Resolves when the server reports exactly `queued` queued and `live` running sessions. Throws an Error after a minute. */
async function untilCounts(client: FloeClient, queued: number, live: number): Promise<void> {
  const deadlineMs = systemClock.monotonicMs() + SETTLE_MS;
  for (;;) {
    const { sessions } = await client.status();
    if ((sessions.QUEUED ?? 0) === queued && (sessions.RUNNING ?? 0) === live) return;
    if (systemClock.monotonicMs() > deadlineMs) throw new Error(`not settled: ${JSON.stringify(sessions)}`);
    await sleep(systemClock, 200);
  }
}

/** Fields of a task whose sessions run until the bench ends. */
const HELD = { timeout_seconds: 3_600, metadata: { init_ms: 1, run_ms: 3_000_000, postrun_ms: 1 } };
