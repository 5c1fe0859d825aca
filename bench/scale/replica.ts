// Measures the CPU time that a thousand nodes cost a rollout server and its PostgreSQL: heartbeats, held lease requests, leases, live sessions
// and results. From these it computes how many nodes one server can serve with one core.
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeClient } from '@floe-rl/client';
import { sleep, systemClock } from '@floe-rl/core';
import type { PostgresCluster } from '../../verify/services/postgres-cluster.ts';
import { childrenOf } from '../../verify/services/processes.ts';
import { type BenchChild, inParallel, startChild } from '../child.ts';
import type { ServerArguments } from './processes.ts';

/** The command-line argument of fake-nodes.ts, which is passed as JSON. Node `i` calls the URL `i % urls.length`. */
export type FakeNodesArguments = { readonly urls: readonly string[]; readonly count: number };

/** Number of engines of each node where their reports are measured. */
export const ENGINES = 200;
/**
 * The reports of heartbeats about the engines. `none`: nothing. `counters`: only the calls in flight have changed. `every`: every heartbeat
 * has another state.
 */
export type EngineReports = 'none' | 'counters' | 'every';
/** Time in seconds after which a node with {@link ENGINES} engines repeats their state because of the calls in flight. */
const REPEAT_SECONDS = 0.15 * ENGINES;

export type ReplicaSize = {
  readonly nodes: number;
  /** Number of sessions of each node that are leased and delivered with a call each. */
  readonly callsPerNode: number;
  /** Number of sessions that each node holds while live sessions are measured. */
  readonly livePerNode: number;
  readonly seconds: number;
};

/** CPU time of the servers together and of PostgreSQL, ms. */
type Cost = { readonly server: number; readonly database: number };

/**
 * Costs of one server with its PostgreSQL in ms of CPU time. Heartbeats and waiting are per node and second, live sessions per session and
 * second, and the others per call.
 */
export type ReplicaFigures = {
  readonly heartbeats: Cost;
  readonly waiting: Cost;
  /** Cost of heartbeats with {@link ENGINES} engines on each node. */
  readonly engines: Cost;
  /** Cost of heartbeats that report the state of all {@link ENGINES} engines every time. */
  readonly enginesRepeated: Cost;
  readonly liveSession: Cost;
  readonly lease: Cost;
  readonly result: Cost;
  /** Cost of waiting with two servers, summed over both. */
  readonly waitingAtTwo: Cost;
};

/** A node of a large cluster, for the number of nodes that a core can serve: it runs 100 sessions of five minutes each. */
export const TYPICAL = { sessions: 100, sessionSeconds: 300 };

/** Time for which the server holds each heartbeat, and so the time between two heartbeats of a node. */
export const HEARTBEAT_SECONDS = 5;
/** Number of clock ticks per second in which Linux counts CPU time. */
const TICKS = 100;
const GROUP = 8;
const SUBMITTERS = 8;
/**
 * Limits of the servers. All nodes of the bench have one address, and each keeps up to three connections open. No heartbeats are sent while
 * sessions are leased and delivered, so the leases are longer than that takes.
 */
const CONFIG = { max_connections: 10_000, max_connections_per_address: 10_000, lease_seconds: 120 };

/** Measures one server, and then two servers, with the given number of nodes that do nothing but call them. */
export async function replicaCosts(
  cluster: PostgresCluster,
  { nodes: count, callsPerNode, livePerNode, seconds }: ReplicaSize,
): Promise<ReplicaFigures> {
  const one = await withNodes(cluster, 1, count, async (bench) => {
    const { client, nodes, costOf } = bench;
    const idle = (leases: boolean, engines: EngineReports = 'none'): Promise<Cost> =>
      idleCost(bench, { leases, engines }, seconds);
    const heartbeats = await idle(false);
    const waiting = await idle(true);
    const counters = await idle(false, 'counters');
    const enginesRepeated = await idle(false, 'every');
    // No state is repeated in so short a measurement.
    const repeats = scaled(HEARTBEAT_SECONDS / REPEAT_SECONDS)(difference(enginesRepeated, counters));
    const engines = { server: counters.server + repeats.server, database: counters.database + repeats.database };
    await inParallel(Math.ceil((count * livePerNode) / GROUP), SUBMITTERS, () =>
      client.submit({ instruction: 'wait', num_samples: GROUP, agent: { harness: 'shell', custom_shell: 'true' } }),
    );
    const perCall = scaled(1 / count / callsPerNode);
    const singly = { each: callsPerNode, atOnce: false };
    const lease = perCall(await costOf(() => nodes.request('lease', singly)));
    await nodes.request('lease', { each: livePerNode - callsPerNode, atOnce: true });
    const busy = await idle(false);
    const result = perCall(await costOf(() => nodes.request('deliver', { each: callsPerNode })));
    const liveSession = scaled(1 / livePerNode)(difference(busy, heartbeats));
    return { heartbeats, waiting, engines, enginesRepeated, lease, liveSession, result };
  });
  const waitingAtTwo = await withNodes(cluster, 2, count, (bench) =>
    idleCost(bench, { leases: true, engines: 'none' }, seconds),
  );
  return { ...one, waitingAtTwo };
}

/**
 * Returns the cost of a node per second while nothing happens. It is computed from the cost of a heartbeat, because the process that plays
 * the nodes may send fewer than it should when the machine is busy.
 */
async function idleCost(
  { nodes, costOf }: Bench,
  calls: { readonly leases: boolean; readonly engines: EngineReports },
  seconds: number,
): Promise<Cost> {
  await nodes.request('start', calls);
  // The first calls of the nodes are spread over one interval.
  await sleep(systemClock, (HEARTBEAT_SECONDS + 1) * 1000);
  const before = Number((await nodes.request('beats')).beats);
  const cost = await costOf(() => sleep(systemClock, seconds * 1000));
  const beats = Number((await nodes.request('beats')).beats) - before;
  await nodes.request('stop');
  return scaled(1 / Math.max(1, beats) / HEARTBEAT_SECONDS)(cost);
}

/** Returns the CPU time per second that one node of the {@link TYPICAL} kind costs, ms. */
export function costOfNode({ heartbeats, liveSession, lease, result }: ReplicaFigures): Cost {
  const of = (part: keyof Cost): number =>
    heartbeats[part] +
    TYPICAL.sessions * Math.max(0, liveSession[part]) +
    (TYPICAL.sessions / TYPICAL.sessionSeconds) * (lease[part] + result[part]);
  return { server: of('server'), database: of('database') };
}

type Bench = {
  readonly client: FloeClient;
  readonly nodes: BenchChild;
  /** Returns the CPU time that the servers and PostgreSQL use while `work` runs. */
  costOf(work: () => Promise<unknown>): Promise<Cost>;
};

async function withNodes<T>(
  cluster: PostgresCluster,
  replicas: number,
  count: number,
  measure: (bench: Bench) => Promise<T>,
): Promise<T> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-replica-'));
  const closers: (() => Promise<void>)[] = [];
  try {
    const database = await cluster.createDatabase();
    const servers: BenchChild[] = [];
    for (let i = 0; i < replicas; i++) {
      const options: ServerArguments = { dir, config: CONFIG, database };
      const server = await startChild(new URL('./server-process.js', import.meta.url), [JSON.stringify(options)]);
      closers.push(() => server.close());
      servers.push(server);
    }
    const urls = servers.map((server) => String(server.ready.url));
    const client = new FloeClient({ url: String(urls[0]) });
    closers.push(() => client.close());
    const fakes: FakeNodesArguments = { urls, count };
    const nodes = await startChild(new URL('./fake-nodes.js', import.meta.url), [JSON.stringify(fakes)]);
    closers.push(() => nodes.close());
    const used = async (): Promise<Cost> => {
      const times = await Promise.all(servers.map((server) => server.request('cpu')));
      const server = times.reduce((sum, { cpuMs }) => sum + Number(cpuMs), 0);
      return { server, database: await cpuMsOf(cluster.pid ?? 0) };
    };
    return await measure({
      client,
      nodes,
      async costOf(work) {
        const before = await used();
        await work();
        return difference(await used(), before);
      },
    });
  } finally {
    for (const close of closers.reverse()) await close();
    await rm(dir, { recursive: true, force: true });
  }
}

/** Returns the CPU time of a process, its children and those children of it that have ended, ms. */
async function cpuMsOf(pid: number): Promise<number> {
  let ticks = 0;
  for (const [index, one] of [pid, ...childrenOf(pid)].entries()) {
    // Fields 14 to 17 of /proc/PID/stat: user and system time of the process, and of its ended children. The name before them may have spaces.
    const stat = await readFile(`/proc/${one}/stat`, 'utf8').catch(() => '');
    const fields = stat
      .slice(stat.lastIndexOf(')') + 2)
      .split(' ')
      .slice(11, index === 0 ? 15 : 13);
    ticks += fields.reduce((sum, field) => sum + Number(field), 0);
  }
  return (ticks * 1000) / TICKS;
}

function scaled(factor: number): (cost: Cost) => Cost {
  return ({ server, database }) => ({ server: server * factor, database: database * factor });
}

function difference(one: Cost, other: Cost): Cost {
  return { server: one.server - other.server, database: one.database - other.database };
}
