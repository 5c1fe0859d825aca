// `npm run verify -- soak`: suite S20, an hour of mixed traffic with occasional faults. Once a minute, it samples the memory and the open
// files of a server and a gateway. Options: --minutes N (default 60), --store sqlite|postgres, --seed N, --json.
import { readdirSync } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { MIB, seededRandom, sleep, systemClock } from '@floe-rl/core';
import type { Child } from '../runner/child.ts';
import { readOptions } from '../runner/options.ts';
import { Progress } from '../runner/progress.ts';
import { conclude } from '../runner/report.ts';
import type { PostgresCluster } from '../services/postgres-cluster.ts';
import { residentKb } from '../services/processes.ts';
import { memoryOf } from './memory.ts';
import type { Service } from './service.ts';
import { withStores } from './stores.ts';
import { randomIndex, underTraffic } from './traffic.ts';
import type { Trainer } from './trainer.ts';

const { options, json } = readOptions({
  minutes: { type: 'string', default: '60' },
  store: { type: 'string', default: 'sqlite' },
  seed: { type: 'string', default: '1' },
});
const MINUTES = Number(options.minutes);
const MINUTE_MS = 60_000;
/** Share of the run after which the memory of a process should no longer grow. Growth after this point counts as a leak. */
const WARM_SHARE = 0.25;
/**
 * Maximum accepted memory growth per hour, as a share of the mean. Samples differ by about as much because different numbers of sessions
 * are in progress.
 */
const MAX_GROWTH_PER_HOUR = 0.05;
/** Minimum duration of a run, in minutes, for which memory growth is checked. In a shorter run the slope is only noise. */
const MIN_SLOPE_MINUTES = 60;
/** Probability that a fault is injected, per second of the run. */
const FAULT_PROBABILITY = 0.1;

type Usage = { readonly heapMb: number; readonly rssMb: number; readonly files: number };
type Sample = { readonly hours: number; readonly server: Usage; readonly gateway: Usage };

const random = seededRandom(Number(options.seed));
const progress = new Progress();

async function soakStore(_: string, postgres: PostgresCluster | null): Promise<void> {
  const row = await underTraffic({ random, postgres, gateways: 3, feeder: { outstanding: 60, pauseSeconds: 1 } }, soak);
  for (const text of row.texts) progress.print(`  ${text}`);
  conclude({
    line: `soak: ${row.minutes} min, ${row.sessions} sessions, ${row.faults} faults, lost ${row.lost}, duplicated ${row.duplicated}, leaked ${row.leaked}, wrong ${row.wrong}, memory after garbage collection ${row.heap_mb.server.join(' -> ')} MB of the server, ${row.heap_mb.gateway.join(' -> ')} MB of a gateway (${row.slope_percent_per_hour} %/h), open files ${row.files.join(' -> ')}, journals ${row.journal_mb} MB`,
    keys: { ...row, texts: undefined },
    isPassed: row.lost + row.duplicated + row.leaked + row.wrong === 0,
    json,
  });
}

async function soak(service: Service, trainer: Trainer): Promise<SoakRow> {
  const samples: Sample[] = [];
  let faults = 0;
  let nextSampleMs = 0;
  const startedMs = systemClock.monotonicMs();
  for (;;) {
    const elapsedMs = systemClock.monotonicMs() - startedMs;
    if (elapsedMs >= MINUTES * MINUTE_MS) break;
    if (elapsedMs >= nextSampleMs) {
      samples.push(await sampleOf(service, elapsedMs));
      nextSampleMs += Math.min(MINUTE_MS, (MINUTES * MINUTE_MS) / 60);
      const minutes = (elapsedMs / MINUTE_MS).toFixed(1);
      progress.show(`soak: ${minutes} of ${MINUTES} min, ${trainer.results.size} sessions, ${faults} faults`);
    }
    if (random() < FAULT_PROBABILITY) {
      await oneFault(service);
      faults++;
    }
    await sleep(systemClock, 1_000);
  }
  const warm = samples.filter((sample) => sample.hours >= (MINUTES / 60) * WARM_SHARE);
  const slopes = {
    server: slopePerHour(warm, ({ server }) => server.heapMb),
    'gateway 0': slopePerHour(warm, ({ gateway }) => gateway.heapMb),
  };
  for (const [name, slope] of Object.entries(slopes)) {
    if (MINUTES < MIN_SLOPE_MINUTES || slope <= MAX_GROWTH_PER_HOUR) continue;
    trainer.violations.push(`${name} grows by ${(slope * 100).toFixed(1)} % an hour`);
  }
  return { minutes: MINUTES, faults, ...figuresOf(warm, Object.values(slopes)), journal_mb: await journalMb(service) };
}

type SoakRow = {
  readonly minutes: number;
  readonly faults: number;
  readonly slope_percent_per_hour: string;
  readonly heap_mb: { readonly server: number[]; readonly gateway: number[] };
  readonly rss_mb: { readonly server: number[]; readonly gateway: number[] };
  readonly files: number[];
  readonly journal_mb: number;
};

function figuresOf(
  warm: readonly Sample[],
  slopes: readonly number[],
): Pick<SoakRow, 'slope_percent_per_hour' | 'heap_mb' | 'rss_mb' | 'files'> {
  const firstAndLast = (value: (sample: Sample) => number): number[] =>
    [warm[0], warm.at(-1)].flatMap((sample) => (sample === undefined ? [] : [Number(value(sample).toFixed(1))]));
  return {
    slope_percent_per_hour: slopes.map((slope) => Number((slope * 100).toFixed(2))).join(' / '),
    heap_mb: { server: firstAndLast((s) => s.server.heapMb), gateway: firstAndLast((s) => s.gateway.heapMb) },
    rss_mb: { server: firstAndLast((s) => s.server.rssMb), gateway: firstAndLast((s) => s.gateway.rssMb) },
    files: firstAndLast((sample) => sample.server.files),
  };
}

/**
 * Kills and restarts gateway 1 or 2, or suspends it for up to 3.3 s. Gateway 0 and the server get no faults, because their memory is
 * measured.
 */
async function oneFault(service: Service): Promise<void> {
  const index = 1 + randomIndex(random, 2);
  const gateway = service.child('gateway', index);
  if (random() < 0.5) {
    gateway.signal('SIGSTOP');
    await sleep(systemClock, 300 + random() * 3_000);
    gateway.signal('SIGCONT');
    return;
  }
  await gateway.kill();
  await service.startGateway(index);
}

async function sampleOf(service: Service, elapsedMs: number): Promise<Sample> {
  return {
    hours: elapsedMs / (60 * MINUTE_MS),
    server: await usageOf(service.child('server', 0)),
    gateway: await usageOf(service.child('gateway', 0)),
  };
}

async function usageOf(child: Child): Promise<Usage> {
  const heapMb = await memoryOf(child);
  const rssMb = Number((residentKb(child.pid) / 1024).toFixed(1));
  return { heapMb, rssMb, files: readdirSync(`/proc/${child.pid}/fd`).length };
}

/** Returns the least-squares slope of a measured value, per hour and as a share of the mean of the value. */
function slopePerHour(samples: readonly Sample[], value: (sample: Sample) => number): number {
  const meanX = samples.reduce((sum, { hours }) => sum + hours, 0) / samples.length;
  const meanY = samples.reduce((sum, sample) => sum + value(sample), 0) / samples.length;
  const covariance = samples.reduce((sum, sample) => sum + (sample.hours - meanX) * (value(sample) - meanY), 0);
  const variance = samples.reduce((sum, { hours }) => sum + (hours - meanX) ** 2, 0);
  return variance === 0 ? 0 : covariance / variance / meanY;
}

async function journalMb(service: Service): Promise<number> {
  let bytes = 0;
  for (const dir of service.stateDirs()) {
    const journal = join(dir, 'journal');
    for (const name of await readdir(journal).catch(() => [])) bytes += (await stat(join(journal, name))).size;
  }
  return Number((bytes / MIB).toFixed(1));
}

await withStores({ program: 'soak', stores: [options.store], progress }, soakStore);
