// How fast a server takes in, hands out and takes back sessions, and what each costs it.
import { parallel, withServer } from './processes.mjs';

/** Samples of a task: a group as trainers compare them. */
const GROUP = 8;
/** Submits under way at a time. */
const SUBMITTERS = 16;
/** Sessions that a node of the rate measurement may have in each stage. */
const WIDTH = 64;

/** A server that has not got that far by then never will. */
const SETTLE_MS = 60_000;

const task = (num_samples, over = {}) => ({
  instruction: 'Fix the failing test in the repository at /work and explain what was wrong with it.',
  num_samples,
  agent: { harness: 'shell', custom_shell: 'true' },
  ...over,
});

const pools = (size) => ({ init: size, ready: size, run: size, postrun: size });

/** Durable submissions with nobody to run them. */
export function submitRate({ sessions, ...store }) {
  return withServer(store, async ({ client, server }) => {
    const submit = (count, num_samples) => parallel(count, SUBMITTERS, () => client.submit(task(num_samples)));
    await submit(50, GROUP);
    const measure = async (tasks, num_samples) => {
      const before = await server.usage();
      const start = performance.now();
      await submit(tasks, num_samples);
      const seconds = (performance.now() - start) / 1000;
      const { cpuMs } = await server.usage();
      return { perSecond: (tasks * num_samples) / seconds, cpuMsEach: (cpuMs - before.cpuMs) / (tasks * num_samples) };
    };
    return { grouped: await measure(sessions / GROUP, GROUP), single: await measure(sessions / GROUP, 1) };
  });
}

/** Submit, lease, stages, delivery and collection of sessions that do nothing. */
export function lifeRate({ sessions, nodes = 2, ...store }) {
  return withServer(store, async ({ client, server, startNode }) => {
    const started = await Promise.all(
      Array.from({ length: nodes }, (_, i) => startNode({ nodeId: `node-${i}`, mode: 'noop', pools: pools(WIDTH) })),
    );
    let after = 0;
    const run = async (count) => {
      const submitted = parallel(count / GROUP, SUBMITTERS, () => client.submit(task(GROUP)));
      let collected = 0;
      for await (const result of client.results({ after, pageSize: 500 })) {
        if (result.outcome !== 'completed') throw new Error(`${result.outcome}: ${result.error?.message}`);
        after = result.cursor;
        if (++collected === count) break;
      }
      await submitted;
    };
    await run(50 * GROUP);
    const cpuOfNodes = async () => {
      const usages = await Promise.all(started.map((node) => node.usage()));
      return usages.reduce((total, { cpuMs }) => total + cpuMs, 0);
    };
    const [serverBefore, nodesBefore, ownBefore] = [await server.usage(), await cpuOfNodes(), process.cpuUsage()];
    const start = performance.now();
    await run(sessions);
    const seconds = (performance.now() - start) / 1000;
    const own = process.cpuUsage(ownBefore);
    return {
      perSecond: sessions / seconds,
      serverCpuMsEach: ((await server.usage()).cpuMs - serverBefore.cpuMs) / sessions,
      nodesCpuMsEach: ((await cpuOfNodes()) - nodesBefore) / sessions,
      clientCpuMsEach: (own.user + own.system) / 1000 / sessions,
    };
  });
}

/** What a queued and a live session take of the server's memory. */
export function memory({ queued, live, ...store }) {
  return withServer(store, async ({ client, server, startNode }) => {
    const submit = (sessions) => parallel(sessions / GROUP, SUBMITTERS, () => client.submit(task(GROUP, HELD)));
    const settled = async (queued, live) => {
      const giveUpMs = performance.now() + SETTLE_MS;
      for (;;) {
        const { sessions } = await client.status();
        if ((sessions.QUEUED ?? 0) === queued && (sessions.RUNNING ?? 0) === live) return server.usage();
        if (performance.now() > giveUpMs) throw new Error(`not settled: ${JSON.stringify(sessions)}`);
        await new Promise((resolve) => setTimeout(resolve, 200));
      }
    };
    // A node that is there already, and caches that are warm, cost no session anything.
    const node = await startNode({ nodeId: 'node', mode: 'staged', pools: { ...pools(32), ready: 0, run: live } });
    await client.submit(task(1, { ...HELD, metadata: { init_ms: 1, run_ms: 1, postrun_ms: 1 } }));
    await settled(0, 0);
    const idle = await server.usage();
    await submit(live);
    const withLive = await settled(0, live);
    await submit(queued);
    const withAll = await settled(queued, live);
    await node.close();
    const kb = (from, to, count, what) => (to[what] - from[what]) / 1024 / count;
    return {
      liveKb: kb(idle, withLive, live, 'rss'),
      queuedKb: kb(withLive, withAll, queued, 'rss'),
      allKb: kb(idle, withAll, live + queued, 'rss'),
      allHeapKb: kb(idle, withAll, live + queued, 'heap'),
    };
  });
}

/** Runs until it is ended. */
const HELD = { timeout_seconds: 3_600, metadata: { init_ms: 1, run_ms: 3_000_000, postrun_ms: 1 } };
