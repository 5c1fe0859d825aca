import { execFileSync } from 'node:child_process';
import { appendFile, mkdtemp, readdir, rm, stat, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { asFloeError, MIB, sleep, systemClock } from '@floe-rl/core';
import { until } from '../../runner/until.ts';
import type { ProcessKind, Service, Wrap } from '../service.ts';
import { type FINDING_KINDS, randomIndex, type SuiteRow, underTraffic } from '../traffic.ts';
import type { Trainer } from '../trainer.ts';
import type { Suite, SuiteRun } from './suite.ts';

/**
 * A task instruction of 120 KB. It is larger than the free space that remains inside the files of a full SQLite database, even after a
 * checkpoint.
 */
const LONG_INSTRUCTION = 'Say something. '.repeat(8_000);
/** Maximum number of tasks that are submitted while the disk is full. The server must refuse one of them. */
const MAX_SUBMISSIONS = 200;
/**
 * Size in MiB of the small file system (tmpfs) that is used as the disk: large enough for the service to work, and small enough to be
 * filled quickly.
 */
const SMALL_DISK_MIB = 96;
const FEEDER = { outstanding: 20, pauseSeconds: 0.2 };

type Case = (run: Pick<SuiteRun, 'random' | 'postgres'>) => Promise<Omit<SuiteRow, 'runs'>>;

/** Suite S6: the disk is full, fails to sync, syncs slowly, or contains only half of the journal's last record after a crash. */
export const disk: Suite = {
  id: 'S6',
  title: 'full, failing, slow and torn disks',
  runs: { full: 24, quick: 5 },
  whyNot: async () => (process.getuid?.() === 0 ? null : 'only root can mount a small file system'),
  async run({ runs, random, postgres }) {
    const cases: readonly Case[] = [fullServerDisk, fullGatewayDisk, failingSync, slowSync, tornJournal];
    const rows: Omit<SuiteRow, 'runs'>[] = [];
    for (let i = 0; i < runs; i++) {
      const one = cases[i % cases.length];
      if (one === undefined) break;
      const row = await one({ random, postgres });
      rows.push({ ...row, texts: row.texts.map((text) => `${one.name}: ${text}`) });
    }
    return merged(rows);
  },
};

/** Combines the results of several test cases into one result with the sums of their counts. */
function merged(rows: readonly Omit<SuiteRow, 'runs'>[]): SuiteRow {
  const sum = (name: 'sessions' | (typeof FINDING_KINDS)[number]): number =>
    rows.reduce((total, row) => total + row[name], 0);
  return {
    runs: rows.length,
    sessions: sum('sessions'),
    lost: sum('lost'),
    duplicated: sum('duplicated'),
    leaked: sum('leaked'),
    wrong: sum('wrong'),
    slowestMs: Math.max(...rows.map((row) => row.slowestMs)),
    texts: rows.flatMap((row) => row.texts),
  };
}

const fullServerDisk: Case = ({ random, postgres }) =>
  onSmallDisk('server', (mount) =>
    underTraffic({ random, postgres, gateways: 2, feeder: FEEDER, storageDir: mount }, async (service, trainer) => {
      await untilFinished(trainer, 20);
      await fill(mount);
      const before = trainer.results.size;
      await sleep(systemClock, 3_000);
      // With PostgreSQL, the full disk holds only the blobs. Submissions are then still accepted, so only SQLite must refuse one.
      const refusal = postgres === null ? await firstRefusal(trainer, service) : 'store_unavailable';
      await rm(join(mount, 'filler'));
      if (refusal !== 'store_unavailable') {
        trainer.violations.push(`submissions on a full disk: ${refusal ?? 'never refused'}`);
      }
      await untilFinished(trainer, before + 20);
      return {};
    }),
  );

const fullGatewayDisk: Case = ({ random, postgres }) =>
  onSmallDisk('gateway', (mount) => {
    const gatewayConfig = (i: number): { state_dir?: string } =>
      i === 0 ? { state_dir: join(mount, 'gateway-0') } : {};
    return underTraffic({ random, postgres, gateways: 2, feeder: FEEDER, gatewayConfig }, async (_, trainer) => {
      await untilFinished(trainer, 20);
      await fill(mount);
      await sleep(systemClock, 3_000);
      const reasons = await refusalReasons(trainer);
      if (!reasons.some((reason) => reason?.includes('disk'))) {
        trainer.violations.push(`a node with a full disk reports ${reasons}`);
      }
      await rm(join(mount, 'filler'));
      await sleep(systemClock, 3_000);
      if ((await refusalReasons(trainer)).some((reason) => reason !== null)) {
        trainer.violations.push('a node does not notice that its disk has space again');
      }
      await untilFinished(trainer, trainer.results.size + 20);
      return {};
    });
  });

/** Test case: the 10th to 40th sync (fsync, fdatasync) of a server or gateway fails with EIO, and later syncs succeed. */
const failingSync: Case = (run) => underTraced(run, ['-e', 'inject=fsync,fdatasync:error=EIO:when=10..40']);

const slowSync: Case = (run) => underTraced(run, ['-e', 'inject=fsync,fdatasync:delay_enter=500000:when=5+7']);

async function underTraced(
  { random, postgres }: Pick<SuiteRun, 'random' | 'postgres'>,
  inject: readonly string[],
): Promise<Omit<SuiteRow, 'runs'>> {
  const wrap: Wrap = (command) => [
    ...['strace', '-f', '-qq', '-o', '/dev/null', '-e', 'trace=fsync,fdatasync'],
    ...inject,
    ...command,
  ];
  return underTraffic({ random, postgres, gateways: 2, feeder: FEEDER }, async (service, trainer) => {
    await untilFinished(trainer, 10);
    const kind: ProcessKind = random() < 0.5 ? 'server' : 'gateway';
    await service.child(kind, 0).kill();
    await service.start(kind, 0, wrap);
    await sleep(systemClock, 5_000);
    await service.child(kind, 0).kill();
    await service.start(kind, 0);
    await untilFinished(trainer, trainer.results.size + 10);
    return {};
  });
}

/** Test case: a gateway is killed, and its journal is then cut within the last record or extended by invalid bytes before the restart. */
const tornJournal: Case = ({ random, postgres }) =>
  underTraffic({ random, postgres, gateways: 2, feeder: FEEDER }, async (service, trainer) => {
    for (let i = 0; i < 3; i++) {
      await untilFinished(trainer, trainer.results.size + 10);
      await service.child('gateway', 0).kill();
      await damage(join(service.dir, 'gateway-0', 'journal'), random);
      await service.startGateway(0);
    }
    await untilFinished(trainer, trainer.results.size + 10);
    return {};
  });

async function damage(dir: string, random: SuiteRun['random']): Promise<void> {
  for (const name of await readdir(dir)) {
    const path = join(dir, name);
    const info = await stat(path);
    if (!info.isFile() || info.size < 20) continue;
    if (random() < 0.5) await truncate(path, info.size - 1 - randomIndex(random, 10));
    else await appendFile(path, Buffer.alloc(7, 0xff));
  }
}

/** Resolves when the trainer has read at least `count` results. Throws an Error when this takes longer than a minute. */
async function untilFinished(trainer: Trainer, count: number): Promise<void> {
  if (await until(() => trainer.results.size >= count, 60_000)) return;
  const violations = trainer.violations.join('; ');
  throw new Error(`only ${trainer.results.size} of ${count} sessions finished: ${violations}`);
}

/** Returns one element for each node: the reason why the node accepts no sessions, or `null` when it accepts them. */
async function refusalReasons(trainer: Trainer): Promise<(string | null)[]> {
  const client = trainer.connect();
  try {
    return (await client.status()).nodes.map(({ refuses }) => refuses);
  } finally {
    await client.close();
  }
}

/**
 * Submits tasks until the service refuses one, and returns the error's code; `null` when the service refuses none. The service may accept
 * some tasks although the disk is full, because there is free space inside the database's files. It must not lose these tasks.
 */
async function firstRefusal(trainer: Trainer, service: Service): Promise<string | null> {
  const client = trainer.connect();
  try {
    for (let i = 0; i < MAX_SUBMISSIONS; i++) {
      const reply = await client.submit(service.task({ instruction: LONG_INSTRUCTION, num_samples: 1 }));
      trainer.acknowledge(reply, false);
    }
    return null;
  } catch (error) {
    return asFloeError(error).code;
  } finally {
    await client.close();
  }
}

/** Writes a file until less than 512 bytes of the file system that is mounted at `mount` are free. */
async function fill(mount: string): Promise<void> {
  const path = join(mount, 'filler');
  await writeFile(path, '');
  for (let size = 4 * MIB; size >= 512; ) {
    await appendFile(path, Buffer.alloc(size)).catch(() => {
      size = Math.floor(size / 2);
    });
  }
}

async function onSmallDisk<T>(name: string, work: (mount: string) => Promise<T>): Promise<T> {
  const mount = await mkdtemp(join('/tmp', `floe-small-${name}-`));
  execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${SMALL_DISK_MIB}m`, 'tmpfs', mount]);
  try {
    return await work(mount);
  } finally {
    execFileSync('umount', ['-l', mount]);
    await rm(mount, { recursive: true, force: true });
  }
}
