// S6: disks that are full, fail to sync, sync slowly, or kept half of the last record.
import { execFileSync } from 'node:child_process';
import { appendFile, mkdir, readdir, rm, stat, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { underTraffic } from '../traffic.mjs';

const MIB = 1024 * 1024;
/** A task that does not fit into what a database has left in its files, however often it is checkpointed. */
const LONG = 'Say something. '.repeat(8_000);
const REFUSED_AFTER = 200;
/** Room for the service at work, quickly filled up. */
const SMALL_MIB = 96;

export const disk = {
  id: 'S6',
  title: 'full, failing, slow and torn disks',
  runs: { full: 24, quick: 5 },
  whyNot: () => (process.getuid() === 0 ? null : 'a small file system can be mounted by root only'),
  async run({ runs, random, postgres }) {
    const cases = [fullServerDisk, fullGatewayDisk, failingSync, slowSync, tornJournal];
    const rows = [];
    for (let i = 0; i < runs; i++) {
      const one = cases[i % cases.length];
      // PostgreSQL syncs for itself; what is left of the server's disk are its blobs.
      const row = await one({ random, postgres });
      row.texts = row.texts.map((text) => `${one.name}: ${text}`);
      rows.push(row);
    }
    return merged(rows);
  },
};

/** One row of several. */
export function merged(rows) {
  const sum = (name) => rows.reduce((total, row) => total + (row[name] ?? 0), 0);
  return {
    runs: rows.length,
    sessions: sum('sessions'),
    lost: sum('lost'),
    duplicated: sum('duplicated'),
    leaked: sum('leaked'),
    wrong: sum('wrong'),
    slowestMs: Math.max(...rows.map((row) => row.slowestMs ?? 0)),
    texts: rows.flatMap((row) => row.texts),
  };
}

const feeder = { outstanding: 20, pauseSeconds: 0.2 };

async function fullServerDisk({ random, postgres }) {
  return onSmallDisk('server', async (mount) =>
    underTraffic({ random, postgres, gateways: 2, feeder, storageDir: mount }, async (world, trainer) => {
      await worked(trainer, 20);
      await fill(mount);
      const before = trainer.results.size;
      await sleep(3_000);
      // With PostgreSQL it holds the blobs alone: results wait, and tasks are taken.
      const refused = postgres === null ? await refusal(trainer, world) : 'store_unavailable';
      await rm(join(mount, 'filler'));
      if (refused !== 'store_unavailable') trainer.wrongs.push(`submits on a full disk: ${refused ?? 'never refused'}`);
      await worked(trainer, before + 20);
      return {};
    }),
  );
}

async function fullGatewayDisk({ random, postgres }) {
  return onSmallDisk('gateway', async (mount) => {
    const gatewayConfig = (i) => (i === 0 ? { state_dir: join(mount, 'gateway-0') } : {});
    return underTraffic({ random, postgres, gateways: 2, feeder, gatewayConfig }, async (_, trainer) => {
      await worked(trainer, 20);
      await fill(mount);
      await sleep(3_000);
      const said = await refusals(trainer);
      if (!said.some((why) => why?.includes('disk'))) trainer.wrongs.push(`a node with a full disk says ${said}`);
      await rm(join(mount, 'filler'));
      await sleep(3_000);
      if ((await refusals(trainer)).some((why) => why !== null)) trainer.wrongs.push('a node does not notice its room');
      await worked(trainer, trainer.results.size + 20);
      return {};
    });
  });
}

/** Syncs of the server, or of a gateway, fail for a while and then work again. */
async function failingSync({ random, postgres }) {
  return underTraced(random, postgres, ['-e', 'inject=fsync,fdatasync:error=EIO:when=10..40']);
}

async function slowSync({ random, postgres }) {
  return underTraced(random, postgres, ['-e', 'inject=fsync,fdatasync:delay_enter=500000:when=5+7']);
}

async function underTraced(random, postgres, inject) {
  const wrap = (_, command) => [
    'strace',
    '-f',
    '-qq',
    '-o',
    '/dev/null',
    '-e',
    'trace=fsync,fdatasync',
    ...inject,
    ...command,
  ];
  return underTraffic({ random, postgres, gateways: 2, feeder }, async (world, trainer) => {
    await worked(trainer, 10);
    const kind = random() < 0.5 ? 'server' : 'gateway';
    const list = kind === 'server' ? world.servers : world.gateways;
    await list[0].kill();
    await (kind === 'server' ? world.startServer(0, wrap) : world.startGateway(0, wrap));
    await sleep(5_000);
    await list[0].kill();
    await (kind === 'server' ? world.startServer(0) : world.startGateway(0));
    await worked(trainer, trainer.results.size + 10);
    return {};
  });
}

/** A gateway is killed, and its journal ends in half a record, or has a flipped bit in its middle. */
async function tornJournal({ random, postgres }) {
  return underTraffic({ random, postgres, gateways: 2, feeder }, async (world, trainer) => {
    for (let i = 0; i < 3; i++) {
      await worked(trainer, trainer.results.size + 10);
      await world.gateways[0].kill();
      await damage(join(world.dir, 'gateway-0', 'journal'), random);
      await world.startGateway(0);
    }
    await worked(trainer, trainer.results.size + 10);
    return {};
  });
}

async function damage(dir, random) {
  for (const name of await readdir(dir)) {
    const path = join(dir, name);
    const { size, isFile } = await stat(path).then((info) => ({ size: info.size, isFile: info.isFile() }));
    if (!isFile || size < 20) continue;
    if (random() < 0.5) await truncate(path, size - 1 - Math.floor(random() * 10));
    else await appendFile(path, Buffer.alloc(7, 0xff));
  }
}

/** Resolves when the trainer has this many results: the service is at work. */
async function worked(trainer, count) {
  for (const deadline = performance.now() + 60_000; trainer.results.size < count; await sleep(20)) {
    if (performance.now() > deadline)
      throw new Error(`only ${trainer.results.size} of ${count} sessions ended: ${trainer.wrongs.join('; ')}`);
  }
}

/** Why nodes take no sessions, one entry a node. */
async function refusals(trainer) {
  const client = trainer.connect();
  try {
    return (await client.status()).nodes.map(({ refuses }) => refuses);
  } finally {
    await client.close();
  }
}

/** Submits until the service refuses; what it takes although the disk is full has found room in its files, and must not be lost. */
async function refusal(trainer, world) {
  const client = trainer.connect();
  try {
    for (let i = 0; i < REFUSED_AFTER; i++) {
      const reply = await client.submit(world.task({ instruction: LONG, num_samples: 1 }));
      trainer.tasks.set(reply.task_id, { ids: reply.session_ids, task: {}, submittedMs: 0 });
    }
    return null;
  } catch (error) {
    return error.code;
  } finally {
    await client.close();
  }
}

async function fill(mount) {
  const path = join(mount, 'filler');
  await writeFile(path, '');
  for (let size = 4 * MIB; size >= 512; ) {
    await appendFile(path, Buffer.alloc(size)).catch(() => {
      size = Math.floor(size / 2);
    });
  }
}

async function onSmallDisk(name, work) {
  const mount = join('/tmp', `floe-small-${name}-${process.pid}-${Math.floor(performance.now())}`);
  await mkdir(mount);
  execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${SMALL_MIB}m`, 'tmpfs', mount]);
  try {
    return await work(mount);
  } finally {
    execFileSync('umount', ['-l', mount]);
    await rm(mount, { recursive: true, force: true });
  }
}
