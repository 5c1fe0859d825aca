// `npm run soak`: S20, an hour of mixed load with faults at a tenth of their usual rate. Options: --minutes N (60), --store sqlite|postgres,
// --seed N, --json. Memory and open files of every process are looked at once a minute.
import { readdirSync, readFileSync } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { startPostgres } from '../services/postgres-cluster.mjs';
import { killAll } from './child.mjs';
import { seeded } from './feeder.mjs';
import { memoryOf } from './memory.mjs';
import { Progress } from './progress.mjs';
import { underTraffic } from './traffic.mjs';

const { values: options } = parseArgs({
  options: {
    minutes: { type: 'string', default: '60' },
    store: { type: 'string', default: 'sqlite' },
    seed: { type: 'string', default: '1' },
    json: { type: 'boolean', default: false },
  },
});
const MINUTES = Number(options.minutes);
const MINUTE_MS = 60_000;
/** A process has its working set after this share of the run; what grows later is a leak. */
const WARM_SHARE = 0.25;
/** Per hour, of what it was when warm. What is in flight makes a sample differ by as much. */
const SLOPE_LIMIT = 0.05;

const random = seeded(Number(options.seed));
const progress = new Progress();

async function main() {
  const postgres = options.store === 'postgres' ? await startPostgres() : null;
  try {
    const row = await underTraffic(
      { random, postgres, gateways: 3, feeder: { outstanding: 60, pauseSeconds: 1 } },
      (world, trainer) => soak(world, trainer),
    );
    for (const text of row.texts) progress.done(`  ${text}`);
    progress.done(
      `soak: ${row.minutes} min, ${row.sessions} sessions, ${row.faults} faults, lost ${row.lost}, duplicated ${row.duplicated}, leaked ${row.leaked}, wrong ${row.wrong}, memory behind garbage collection ${row.heap_mb.server.join(' -> ')} MB of the server, ${row.heap_mb.gateway.join(' -> ')} MB of a gateway (${row.slope_percent_per_hour} %/h), open files ${row.files.join(' -> ')}, journals ${row.journal_mb} MB`,
    );
    if (options.json) console.log(JSON.stringify({ ...row, texts: undefined }));
    process.exitCode = row.lost + row.duplicated + row.leaked + row.wrong > 0 ? 1 : 0;
  } finally {
    await postgres?.stop();
  }
}

async function soak(world, trainer) {
  const samples = [];
  let faults = 0;
  const startedMs = performance.now();
  let nextSampleMs = 0;
  // The server that is measured is never killed: a new process starts small.
  while (performance.now() - startedMs < MINUTES * MINUTE_MS) {
    const elapsedMs = performance.now() - startedMs;
    if (elapsedMs >= nextSampleMs) {
      samples.push({
        hours: elapsedMs / (60 * MINUTE_MS),
        server: await usage(world.servers[0]),
        gateway: await usage(world.gateways[0]),
      });
      nextSampleMs += Math.min(MINUTE_MS, (MINUTES * MINUTE_MS) / 60);
      progress.show(
        `soak: ${(elapsedMs / MINUTE_MS).toFixed(1)} of ${MINUTES} min, ${trainer.results.size} sessions, ${faults} faults`,
      );
    }
    if (random() < 0.1) {
      await oneFault(world);
      faults++;
    }
    await sleep(1_000);
  }
  const warm = samples.filter((sample) => sample.hours >= (MINUTES / 60) * WARM_SHARE);
  const slopes = [slope(warm, (sample) => sample.server.heapMb), slope(warm, (sample) => sample.gateway.heapMb)];
  const firstAndLast = (pick) => [warm[0], warm.at(-1)].map((sample) => Number(pick(sample).toFixed(1)));
  for (const [i, name] of ['server', 'gateway 0'].entries()) {
    if (MINUTES >= 60 && slopes[i] > SLOPE_LIMIT)
      trainer.wrongs.push(`${name} grows by ${(slopes[i] * 100).toFixed(1)} % an hour`);
  }
  return {
    minutes: MINUTES,
    faults,
    slope_percent_per_hour: slopes.map((one) => Number((one * 100).toFixed(2))).join(' / '),
    heap_mb: {
      server: firstAndLast((sample) => sample.server.heapMb),
      gateway: firstAndLast((sample) => sample.gateway.heapMb),
    },
    rss_mb: {
      server: firstAndLast((sample) => sample.server.rssMb),
      gateway: firstAndLast((sample) => sample.gateway.rssMb),
    },
    files: firstAndLast((sample) => sample.server.files),
    journal_mb: await journalMb(world),
  };
}

/** Gateways 1 and 2 are killed or stopped for a while; 0 and the server live on, to be measured. */
async function oneFault(world) {
  const i = 1 + Math.floor(random() * 2);
  const child = world.gateways[i];
  if (random() < 0.5) {
    child.signal('SIGSTOP');
    await sleep(300 + random() * 3_000);
    child.signal('SIGCONT');
    return;
  }
  await child.kill();
  await world.startGateway(i);
}

async function usage(child) {
  const { pid } = child;
  const heapMb = await memoryOf(child);
  const rssMb = Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1]) / 1024;
  return { heapMb, rssMb: Number(rssMb.toFixed(1)), files: readdirSync(`/proc/${pid}/fd`).length };
}

/** Least-squares slope per hour, as a share of the mean. */
function slope(samples, pick) {
  const n = samples.length;
  const meanX = samples.reduce((sum, sample) => sum + sample.hours, 0) / n;
  const meanY = samples.reduce((sum, sample) => sum + pick(sample), 0) / n;
  const top = samples.reduce((sum, sample) => sum + (sample.hours - meanX) * (pick(sample) - meanY), 0);
  const bottom = samples.reduce((sum, sample) => sum + (sample.hours - meanX) ** 2, 0);
  return bottom === 0 ? 0 : top / bottom / meanY;
}

async function journalMb(world) {
  let bytes = 0;
  for (const dir of world.stateDirs()) {
    for (const name of await readdir(join(dir, 'journal')).catch(() => []))
      bytes += (await stat(join(dir, 'journal', name))).size;
  }
  return Number((bytes / 2 ** 20).toFixed(1));
}

try {
  await main();
} finally {
  await killAll();
}
