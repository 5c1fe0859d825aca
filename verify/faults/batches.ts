// `npm run verify -- batches`: kills servers, gateways and trainer at random moments while batches are handed out. Afterwards every row must
// be in exactly one batch, and every session in one group. A batch that is requested again must equal the batch that was trained. With
// PostgreSQL there are two servers, and the trainer requests each batch from both at the same time. In every second stream few groups may run,
// and their number is watched.
//
// Options: --kills N (default 100), --rows N (rows of each stream, default 120), --store sqlite|postgres, --seed N, --quick (10 kills,
// SQLite), --json.
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { FloeClient } from '@floe-rl/client';
import { seededRandom, sleep, systemClock } from '@floe-rl/core';
import type { BatchStreamRequestInput } from '@floe-rl/core/schema';
import { Child } from '../runner/child.ts';
import { readOptions } from '../runner/options.ts';
import { Progress } from '../runner/progress.ts';
import { conclude } from '../runner/report.ts';
import type { PostgresCluster } from '../services/postgres-cluster.ts';
import { Service } from './service.ts';
import { withStores } from './stores.ts';
import { pick } from './traffic.ts';
import { readCheckpoint, type TrainedBatch } from './trainer-process.ts';

const { options, json } = readOptions({
  kills: { type: 'string' },
  rows: { type: 'string', default: '120' },
  store: { type: 'string', multiple: true },
  seed: { type: 'string', default: '1' },
  quick: { type: 'boolean', default: false },
});
const KILLS = Number(options.kills ?? (options.quick ? 10 : 100));
const ROWS = Number(options.rows);
const STORES = options.store ?? (options.quick ? ['sqlite'] : ['sqlite', 'postgres']);
/** Maximum number of kills during one stream, so that each kill happens while batches are handed out. */
const KILLS_PER_STREAM = 25;
/** Longest time in ms between two kills. */
const MAX_PAUSE_MS = 1_500;
/** Maximum lead of the kills: the share of the planned kills that were made may exceed the share of the finished batches by this much. */
const MAX_KILL_LEAD = 0.1;
const BATCH_SIZE = 4;
const TRAINER = fileURLToPath(new URL('./trainer-process.js', import.meta.url));

/**
 * Staleness bound (`max_staleness`) of every second stream: this many batches may be sampled in advance. The trainer names no policy version
 * in these streams, so no group becomes too old.
 */
const BOUNDED_STALENESS = 2;
const WATCH_INTERVAL_MS = 50;

/** `exceeded` is the number of observations with more running and ready groups than the stream permits. */
type Findings = {
  readonly lost: number;
  readonly doubled: number;
  readonly changed: number;
  readonly exceeded: number;
};

const random = seededRandom(Number(options.seed));
const progress = new Progress();

function streamOf(service: Service, batchId: string, isBounded: boolean): BatchStreamRequestInput {
  const { instruction, agent, timeout_seconds, max_attempts, evaluator } = service.task();
  return {
    batch_id: batchId,
    source: { kind: 'rows', rows: Array.from({ length: ROWS }, (_, index) => ({ index })) },
    task: {
      instruction: `${instruction} {{row.index}}`,
      num_samples: 2,
      agent,
      timeout_seconds,
      max_attempts,
      evaluator,
    },
    batch_size: BATCH_SIZE,
    // All rewards are 1, so groups without variance must be kept. No group becomes too old, so each row is handed out exactly once.
    accept: { zero_variance: 'keep' },
    max_staleness: isBounded ? BOUNDED_STALENESS : 1_000,
    order: { kind: 'shuffled', seed: Number(options.seed), epochs: 1 },
  };
}

/** Polls a stream until `end` is aborted. Returns how often it had more running and ready groups than it permits. */
async function watchBound(client: FloeClient, batchId: string, end: AbortSignal): Promise<number> {
  let exceeded = 0;
  while (!end.aborted) {
    const { progress: groups } = await client.batchStream(batchId);
    if (groups.running + groups.ready > (1 + BOUNDED_STALENESS) * BATCH_SIZE) exceeded += 1;
    await sleep(systemClock, WATCH_INTERVAL_MS);
  }
  return exceeded;
}

/** Runs one stream to its end with at most `limit` kills. Returns the number of kills and the violations. */
async function runStream(service: Service, client: FloeClient, number: number, limit: number) {
  const batchId = `stream-${number}`;
  const isBounded = number % 2 === 0;
  await client.createBatchStream(streamOf(service, batchId, isBounded));
  const ended = new AbortController();
  const exceeded = isBounded ? watchBound(client, batchId, ended.signal) : Promise.resolve(0);
  const checkpoint = join(service.dir, `${batchId}.jsonl`);
  const urls = service.servers.map((_, index) => service.url(index)).join();
  const command = [process.execPath, TRAINER, urls, batchId, checkpoint, ...(isBounded ? [] : ['versions'])];
  let trainer = new Child(command);
  let kills = 0;
  while (trainer.isRunning && kills < limit) {
    await Promise.race([trainer.exited, sleep(systemClock, random() * MAX_PAUSE_MS)]);
    // The kills are spread over the stream, so the share of the kills stays close to the share of the finished batches.
    const share = readCheckpoint(checkpoint).length / (ROWS / BATCH_SIZE);
    if (kills / limit > share + MAX_KILL_LEAD && trainer.isRunning) continue;
    if (!trainer.isRunning && share >= 1) break;
    const target = pick(random, ['server', 'gateway', 'trainer'] as const);
    progress.show(`${batchId}: ${kills} of ${limit} kills, ${readCheckpoint(checkpoint).length} batches`);
    if (target === 'trainer') {
      await trainer.kill();
      trainer = new Child(command);
    } else {
      const children = target === 'server' ? service.servers : service.gateways;
      const index = Math.floor(random() * children.length);
      await service.child(target, index).kill();
      await service.start(target, index);
    }
    kills += 1;
  }
  const { code } = await trainer.exited;
  if (code !== 0) throw new Error(`the trainer of ${batchId} ended with ${code}: ${trainer.errors}`);
  ended.abort();
  const compared = await compare(client, batchId, readCheckpoint(checkpoint));
  return { kills, findings: { ...compared, exceeded: await exceeded } };
}

async function compare(
  client: FloeClient,
  batchId: string,
  trained: readonly TrainedBatch[],
): Promise<Omit<Findings, 'exceeded'>> {
  const groups = trained.flatMap((batch) => batch.groups);
  const rows = new Set(groups.map(({ row }) => row));
  const sessions = groups.flatMap((group) => group.sessions);
  let changed = 0;
  for (const { batch, groups: before } of trained) {
    const again = await client.nextBatch(batchId, { after: batch - 1, waitSeconds: 0 });
    const ids = again.groups.map((group) => group.group_id);
    if (again.batch !== batch || ids.join() !== before.map(({ group_id }) => group_id).join()) changed += 1;
  }
  const numbers = trained.map(({ batch }) => batch);
  const skipped = numbers.filter((number, index) => number !== index + 1).length;
  const incomplete = groups.filter((group) => group.sessions.length !== 2).length;
  const doubled = groups.length - rows.size + (sessions.length - new Set(sessions).size);
  return { lost: ROWS - rows.size + skipped + incomplete, doubled, changed };
}

const COUNTS = ['kills', 'rows', 'lost', 'doubled', 'changed', 'exceeded'] as const;
type Total = Record<(typeof COUNTS)[number], number>;

async function runStore(store: string, postgres: PostgresCluster | null): Promise<Total> {
  const total: Total = { kills: 0, rows: 0, lost: 0, doubled: 0, changed: 0, exceeded: 0 };
  const count = postgres === null ? 1 : 2;
  const service = await Service.start({ postgres, servers: count, gateways: count });
  const client = new FloeClient({ url: service.url(), retrySeconds: 60 });
  try {
    const kills = Math.ceil(KILLS / STORES.length);
    for (let stream = 1; total.kills < kills; stream++) {
      const limit = Math.min(KILLS_PER_STREAM, kills - total.kills);
      const run = await runStream(service, client, stream, limit);
      const { lost, doubled, changed, exceeded } = run.findings;
      progress.print(
        `${store}, stream ${stream}: ${run.kills} kills, lost ${lost}, doubled ${doubled}, changed ${changed}, exceeded ${exceeded}`,
      );
      for (const key of COUNTS) total[key] += { ...run.findings, kills: run.kills, rows: ROWS }[key];
    }
  } finally {
    await client.close();
    await service.close();
  }
  return total;
}

const reports = await withStores({ program: 'batches', stores: STORES, progress }, runStore);
const sum = (key: (typeof COUNTS)[number]): number =>
  Object.values(reports).reduce((all, report) => all + (report?.[key] ?? 0), 0);
const [kills, rows, lost, doubled, changed, exceeded] = COUNTS.map(sum);
conclude({
  line: `batches: ${kills} kills, ${rows} rows, lost ${lost}, doubled ${doubled}, changed ${changed}, exceeded ${exceeded}`,
  keys: Object.fromEntries(COUNTS.map((key) => [key, sum(key)])),
  isPassed: sum('lost') + sum('doubled') + sum('changed') + sum('exceeded') === 0,
  json,
});
