// Compares a server whose database has many finished sessions with one whose database has few of them. Both are measured in turns, with the
// same operations.
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { type IncomingMessage, request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type FloeClient, NodeApi } from '@floe-rl/client';
import { MIB, sleep, systemClock } from '@floe-rl/core';
import type { RolloutConfigInput } from '@floe-rl/server';
import { DirectoryBlobStore } from '#server/store/index';
import type { BlobRef } from '#server/store/rows';
import { inParallel } from '../child.ts';
import { median, percentile } from '../report.ts';
import { addFinished, GROUP, openSql, type Sql } from './finished-rows.ts';
import { type Bench, type ServerOptions, usageOf, withServer } from './processes.ts';
import { pools, SUBMITTERS, task, WIDTH } from './rates.ts';

/** Number of tasks in each of two ranges whose trajectories can be read. One range is in the middle of all results, the other near the end. */
const PAGED_TASKS = 500;
/** Number of the last tasks whose trajectories have 1 MiB each. */
const WIDE_TASKS = 256;
const WIDE_RESULTS = WIDE_TASKS * GROUP;
/** Tasks of the database with few finished sessions. */
export const FEW_TASKS = 2_560;
/** Number of results per request. */
const PAGE = 100;
/** Number of nodes that claim sessions at the same time, and sessions that each claims with one request. */
const CLAIMANTS = 4;
const CLAIM = 16;
/**
 * Workers of each stage of a node that runs sessions. With more workers, sessions on a busy machine wait for the server's connections until
 * they fail.
 */
const NODE_WIDTH = 16;

/** The work of one round. */
export type Load = {
  readonly submits: number;
  readonly claims: number;
  readonly lives: number;
  readonly pages: number;
};

/** A server's data, filled with finished sessions. */
export type Filled = {
  readonly dir: string;
  readonly database: string | null;
  readonly tasks: number;
  readonly oldTasks: number;
  readonly lastCursor: number;
  /** Bytes of the database, without blobs. */
  readonly bytes: number;
};

export type FillOptions = {
  readonly database: string | null;
  readonly tasks: number;
  /** Number of tasks that retention removes. */
  readonly oldTasks: number;
  readonly queued: number;
};

const QUIET: RolloutConfigInput = { lease_seconds: 3600, retention_sweep_seconds: 3600 };

/** Fills a database: a server and a node run one task, SQL copies it, and a server accepts the queued sessions. */
export async function fill({ database, tasks, oldTasks, queued }: FillOptions): Promise<Filled> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-scale-large-'));
  const options: ServerOptions = { dir, database, config: QUIET };
  const taskId = await withServer(options, async ({ client, startNode }) => {
    await startNode({ nodeId: 'first', mode: 'noop', pools: pools(WIDTH) });
    const { task_id } = await client.submit(task(GROUP));
    await client.endedTask(task_id);
    for await (const _ of client.results({ follow: false }));
    return task_id;
  });
  const blobs = await blobsIn(dir);
  const sql = await openSql(dir, database);
  const middle = Math.floor(tasks / 2);
  const readable = [
    { from: middle, to: middle + PAGED_TASKS, blobs: blobs.small },
    { from: tasks - WIDE_TASKS - PAGED_TASKS, to: tasks - WIDE_TASKS, blobs: blobs.small },
    { from: tasks - WIDE_TASKS, to: tasks, blobs: blobs.wide },
  ];
  try {
    await addFinished(sql, { taskId, tasks, oldTasks, readable }, (added) => {
      if (added % 125_000 === 0) console.error(`  ${added * GROUP} finished sessions added`);
    });
    const lastCursor = Number((await sql.rows('select max(cursor) as cursor from results'))[0]?.cursor ?? 0);
    const bytes = await sizeOf(sql, database);
    await withServer(options, async ({ client }) => {
      await inParallel(queued / GROUP, SUBMITTERS, () => client.submit(task(GROUP)));
      await untilFolded(sql);
    });
    return { dir, database, tasks, oldTasks, lastCursor, bytes };
  } finally {
    await sql.close();
  }
}

async function blobsIn(dir: string): Promise<{ readonly small: BlobRef[]; readonly wide: BlobRef[] }> {
  const store = await DirectoryBlobStore.open(join(dir, 'blobs'), systemClock);
  const make = (bytes: number): Promise<BlobRef[]> =>
    Promise.all([...'01234567'].map((digit) => store.put(Buffer.from(`{"traces":"${digit.repeat(bytes)}"}`))));
  const made = { small: await make(8_000), wide: await make(MIB) };
  await store.close();
  return made;
}

async function sizeOf(sql: Sql, database: string | null): Promise<number> {
  const query =
    database === null
      ? 'select page_count * page_size as bytes from pragma_page_count, pragma_page_size'
      : 'select pg_database_size(current_database()) as bytes';
  return Number((await sql.rows(query))[0]?.bytes ?? 0);
}

/** Waits until the server has added the finished sessions to the totals. */
async function untilFolded(sql: Sql): Promise<void> {
  const waiting = 'select (select max(fact_no) from session_facts) - folded_no as waiting from session_totals_state';
  for (;;) {
    if (Number((await sql.rows(waiting))[0]?.waiting ?? 0) < 1000) return;
    await sleep(systemClock, 500);
  }
}

/** Figures of a server in one round. Times are in milliseconds, and each is the median of some requests. */
export type RoundFigures = {
  readonly submitsPerSecond: number;
  readonly claimsPerSecond: number;
  readonly livesPerSecond: number;
  readonly lifeCpuMs: number;
  readonly middlePerSecond: number;
  readonly endPerSecond: number;
  readonly listMs: number;
  readonly totalsMs: number;
  readonly statusMs: number;
  readonly tasksMs: number;
};

/** A running server over filled data, which is measured one round at a time. */
export type Measured = { round(load: Load): Promise<RoundFigures>; wideRead(): Promise<ReadFigures> };

/** Starts a server over filled data and calls `use` with it. */
export function withFilled<T>(filled: Filled, use: (measured: Measured) => Promise<T>): Promise<T> {
  return withServer({ ...filled, config: QUIET }, async (bench) => {
    let cursor = filled.lastCursor;
    return use({
      async round(load) {
        const life = await lifeOf(bench, load.lives, cursor);
        cursor = life.cursor;
        return { ...life, ...(await rowsOf(bench, filled, load)) };
      },
      wideRead: () => readWide(bench, filled.lastCursor - WIDE_RESULTS),
    });
  });
}

let claimants = 0;

async function rowsOf({ client, url }: Bench, { tasks, lastCursor }: Filled, load: Load) {
  const submitsPerSecond = await perSecond(load.submits, () =>
    inParallel(load.submits / GROUP, SUBMITTERS, () => client.submit(task(GROUP))),
  );
  const nodes = Array.from({ length: CLAIMANTS }, () => claimant(url));
  await Promise.all(nodes.map((node) => node.register(SIZES)));
  const claimsPerSecond = await perSecond(load.claims, () =>
    inParallel(load.claims / CLAIM, CLAIMANTS, async (i) => {
      const leases = await nodes[i % CLAIMANTS]?.lease({ slots: CLAIM, wait_seconds: 0 });
      if (leases?.length === CLAIM) return;
      const { bottleneck, sessions } = await client.status();
      throw new Error(
        `${leases?.length} sessions were leased instead of ${CLAIM}: ${JSON.stringify({ bottleneck, sessions })}`,
      );
    }),
  );
  for (const node of nodes) {
    await node.drain();
    await node.close();
  }
  const pages = (after: number) =>
    perSecond(load.pages * PAGE, () =>
      inParallel(load.pages, 1, async (i) => void (await read(url, pathOf(after + (i % 30) * PAGE)))),
    );
  return {
    submitsPerSecond,
    claimsPerSecond,
    middlePerSecond: await pages(lastCursor - Math.ceil(tasks / 2) * GROUP),
    endPerSecond: await pages(lastCursor - (WIDE_TASKS + PAGED_TASKS) * GROUP),
    listMs: await timeOf(url, '/sessions'),
    totalsMs: await timeOf(url, '/sessions/totals?by=hour'),
    statusMs: await timeOf(url, '/rollout/status'),
    tasksMs: await timeOf(url, '/tasks'),
  };
}

/** Sizes of a node that can hold all sessions that it claims. */
const SIZES = {
  ...{ host: null, gateway_url: null, dispatch_policy: 'pipeline' as const, memory_mb: null },
  ...{ max_init_workers: 10_000, ready_size: 10_000, max_run_workers: 10_000, max_postrun_workers: 10_000 },
};

function claimant(url: string): NodeApi {
  return new NodeApi({ url, token: null, nodeId: `claimant-${claimants++}`, clock: systemClock });
}

async function lifeOf({ client, url, server, startNode }: Bench, count: number, after: number) {
  const nodes = await Promise.all(
    Array.from({ length: 2 }, (_, i) => startNode({ nodeId: `node-${i}`, mode: 'noop', pools: pools(NODE_WIDTH) })),
  );
  const warm = await live(client, url, count / 4, after);
  const { cpuMs } = await usageOf(server);
  const start = systemClock.monotonicMs();
  const cursor = await live(client, url, count, warm);
  const seconds = (systemClock.monotonicMs() - start) / 1000;
  const lifeCpuMs = ((await usageOf(server)).cpuMs - cpuMs) / (cursor - warm);
  for (const node of nodes) await node.close();
  return { livesPerSecond: (cursor - warm) / seconds, lifeCpuMs, cursor };
}

/**
 * Collects at least `count` results after a cursor, and submits as many sessions as it collects. Resolves to the cursor of the last result.
 */
async function live(client: FloeClient, url: string, count: number, after: number): Promise<number> {
  let [cursor, submitted] = [after, 0];
  while (cursor - after < count) {
    cursor = (await read(url, `/rollout/results?limit=500&wait=5&after=${cursor}`)).next;
    const tasks = Math.floor((cursor - after - submitted) / GROUP);
    await inParallel(tasks, CLAIMANTS, () => client.submit(task(GROUP)));
    submitted += tasks * GROUP;
  }
  return cursor;
}

async function perSecond(count: number, work: () => Promise<unknown>): Promise<number> {
  const start = systemClock.monotonicMs();
  await work();
  return (count * 1000) / (systemClock.monotonicMs() - start);
}

async function timeOf(url: string, path: string): Promise<number> {
  const times: number[] = [];
  for (let i = 0; i < 9; i++) {
    const start = systemClock.monotonicMs();
    await read(url, path);
    times.push(systemClock.monotonicMs() - start);
  }
  return median(times) ?? 0;
}

const pathOf = (after: number): string => `/rollout/results?peek=true&limit=${PAGE}&after=${after}`;

type Reply = { readonly bytes: number; readonly next: number };

/** Reads a reply without keeping or parsing it. Throws an Error for a status other than 200. */
async function read(url: string, path: string): Promise<Reply> {
  const call = request(`${url}${path}`, { headers: { accept: 'application/x-ndjson, application/json' } });
  call.end();
  const [reply] = (await once(call, 'response')) as [IncomingMessage];
  let bytes = 0;
  for await (const chunk of reply) bytes += (chunk as Buffer).length;
  if (reply.statusCode !== 200) throw new Error(`${path}: status ${reply.statusCode}`);
  return { bytes, next: Number(reply.headers['x-next-cursor'] ?? 0) };
}

export type ReadFigures = {
  readonly mbPerSecond: number;
  readonly mbPerCpuSecond: number;
  /** Growth of the server's resident set while it sends, in MB. */
  readonly growthMb: number;
};

/** Reads all results after a cursor, page by page. */
async function readWide({ url, server }: Bench, from: number): Promise<ReadFigures> {
  await read(url, pathOf(from));
  const before = await usageOf(server);
  const start = systemClock.monotonicMs();
  let [bytes, largest] = [0, 0];
  for (let after = from; ; ) {
    const page = await read(url, `${pathOf(after)}`);
    largest = Math.max(largest, Number((await server.request('rss')).rss));
    bytes += page.bytes;
    if (bytes >= WIDE_RESULTS * MIB || page.next === after) break;
    after = page.next;
  }
  const seconds = (systemClock.monotonicMs() - start) / 1000;
  const { cpuMs } = await usageOf(server);
  return {
    mbPerSecond: bytes / 1e6 / seconds,
    mbPerCpuSecond: bytes / 1e3 / (cpuMs - before.cpuMs),
    growthMb: (largest - before.rss) / 1e6,
  };
}

export type RetentionFigures = {
  readonly sessionsPerSecond: number;
  /** Milliseconds of submissions of one task each while old tasks were removed. */
  readonly submitP50Ms: number;
  readonly submitP99Ms: number;
  readonly submitMaxMs: number;
};

/** Measures the removal of the old tasks by a server that accepts a task every few milliseconds meanwhile. */
export async function retention(filled: Filled): Promise<RetentionFigures> {
  const config = { lease_seconds: 3600, retention_sweep_seconds: 1, retain_tasks_hours: 5 };
  const sql = await openSql(filled.dir, filled.database);
  const left = async (): Promise<number> =>
    Number(
      (await sql.rows('select count(*) as tasks from tasks where ended_ms is not null and ended_ms < 0'))[0]?.tasks,
    );
  try {
    return await withServer({ ...filled, config }, async ({ client }) => {
      while ((await left()) === filled.oldTasks) await sleep(systemClock, 5);
      const [start, first] = [systemClock.monotonicMs(), await left()];
      const times: number[] = [];
      while ((await left()) > 0) times.push(...(await submitTimes(client)));
      const seconds = (systemClock.monotonicMs() - start) / 1000;
      return {
        sessionsPerSecond: (first * GROUP) / seconds,
        submitP50Ms: median(times) ?? 0,
        submitP99Ms: percentile(times, 0.99) ?? 0,
        submitMaxMs: Math.max(...times),
      };
    });
  } finally {
    await sql.close();
  }
}

async function submitTimes(client: FloeClient): Promise<number[]> {
  const times: number[] = [];
  for (let i = 0; i < 20; i++) {
    const start = systemClock.monotonicMs();
    await client.submit(task(GROUP));
    times.push(systemClock.monotonicMs() - start);
    await sleep(systemClock, 5);
  }
  return times;
}

export async function discard({ dir }: Filled): Promise<void> {
  await rm(dir, { recursive: true, force: true });
}
