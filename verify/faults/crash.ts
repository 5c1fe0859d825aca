// `npm run verify -- crash`: kills a server or gateway immediately before its n-th system call that stores or sends data, for many values of
// n. Then it kills processes at random times. Both parts run with SQLite and with PostgreSQL.
//
//   npm run verify -- crash [--points N] [--kills N] [--sessions N] [--store sqlite|postgres] [--seed N] [--quick] [--json]
//
// `--points` is the number of kill points per store (default 400). `--kills` is the number of random kills (default 1000). `--sessions` has
// the default 5000. `--quick` uses 40 points, 40 kills and 200 sessions.
import { asFloeError, seededRandom, sleep, systemClock } from '@floe-rl/core';
import type { Child } from '../runner/child.ts';
import { readOptions } from '../runner/options.ts';
import { Progress } from '../runner/progress.ts';
import { until } from '../runner/until.ts';
import type { PostgresCluster } from '../services/postgres-cluster.ts';
import { childrenOf, killPid } from '../services/processes.ts';
import { CALL_CLASSES, type CallClass, countCalls, killAt, logCalls, spread, withLog } from './kill-points.ts';
import { type ProcessKind, Service, type Verdict, type Wrap } from './service.ts';
import { concludeStores, withStores } from './stores.ts';
import { complaints, Feeder, type FindingKind, pick, randomIndex, untilCalledBack } from './traffic.ts';
import type { Trainer } from './trainer.ts';

const { options, json } = readOptions({
  points: { type: 'string' },
  kills: { type: 'string' },
  sessions: { type: 'string' },
  store: { type: 'string', multiple: true, default: ['sqlite', 'postgres'] },
  seed: { type: 'string', default: '1' },
  quick: { type: 'boolean', default: false },
});
const POINTS = Number(options.points ?? (options.quick ? 40 : 400));
const KILLS = Number(options.kills ?? (options.quick ? 40 : 1_000));
const SESSIONS = Number(options.sessions ?? (options.quick ? 200 : 5_000));
/** Number of sessions that must finish while the system calls of a process are counted. */
const SCENARIO_SESSIONS = 20;
/**
 * After this many kill points (system calls before which a process is killed), server and gateway are restarted without strace, so that
 * sessions can finish.
 */
const REVIVE_INTERVAL = 25;
/**
 * Maximum time in ms in which a process must reach its kill point, the system call before which strace kills it. A kill point that is not
 * reached in this time is not counted.
 */
const REACH_MS = 8_000;
/**
 * Maximum lead of the random kills. The share of the planned kills that were performed may exceed the share of the planned sessions that
 * have finished by this much.
 */
const MAX_KILL_LEAD = 0.05;
/** Maximum time in ms in which all sessions must end after the last kill. */
const SETTLE_MS = 60_000;
/**
 * Time in ms after which a gateway is restarted when its spawn helper was killed. In production, a supervisor would restart the gateway.
 */
const SUPERVISOR_MS = 300;

type Counts = Readonly<Record<FindingKind, number>>;
type StoreReport = Counts & {
  readonly points: number;
  readonly kills: number;
  readonly sessions: number;
  readonly slowest_recovery_s: number;
  readonly throughput_under_kills: number;
};

const random = seededRandom(Number(options.seed));
const progress = new Progress();

/** Runs the scenarios S1 (kills at chosen system calls) and S2 (kills at random times) with one store. */
async function crashStore(store: string, postgres: PostgresCluster | null): Promise<StoreReport> {
  const points = await killAtEveryPoint(store, postgres);
  const storm = await killAtRandom(store, postgres);
  const sum = (kind: FindingKind): number => points.tally.counts[kind] + storm.tally.counts[kind];
  const slowestMs = Math.max(points.tally.slowestMs, storm.tally.slowestMs);
  const report = {
    points: points.points,
    kills: storm.kills,
    sessions: points.sessions + storm.sessions,
    lost: sum('lost'),
    duplicated: sum('duplicated'),
    leaked: sum('leaked'),
    wrong: sum('wrong'),
    slowest_recovery_s: Number((slowestMs / 1000).toFixed(2)),
    throughput_under_kills: storm.throughput,
  };
  progress.print(
    `crash ${store}: points ${report.points}, kills ${report.kills}, sessions ${report.sessions}, lost ${report.lost}, duplicated ${report.duplicated}, leaked ${report.leaked}, wrong ${report.wrong}, slowest recovery ${report.slowest_recovery_s} s`,
  );
  return report;
}

/** Counts the violated guarantees of the service, and prints each distinct violation once. */
class Tally {
  readonly counts: Record<FindingKind, number> = { lost: 0, duplicated: 0, leaked: 0, wrong: 0 };
  slowestMs = 0;
  private readonly printed = new Set<string>();

  add(verdict: Verdict, part: string): void {
    for (const { kind, text } of complaints(verdict)) {
      if (this.printed.has(text)) continue;
      this.printed.add(text);
      this.counts[kind]++;
      progress.print(`  ${part}: ${text}`);
    }
    this.slowestMs = Math.max(this.slowestMs, verdict.slowestRecoveryMs);
  }
}

/** Checks all guarantees of a service, and whether its lists and sums of ended sessions equal its results. */
async function verdictOf(service: Service): Promise<Verdict> {
  const verdict = await service.verdict();
  return { ...verdict, wrong: [...verdict.wrong, ...(await service.checkLists())] };
}

type KillPoint = { readonly kind: ProcessKind; readonly calls: CallClass; readonly n: number };

/**
 * Scenario S1: under steady traffic, kills the server and a gateway at each of their planned kill points in turn. A kill point is a system
 * call before which a process is killed.
 */
async function killAtEveryPoint(
  store: string,
  postgres: PostgresCluster | null,
): Promise<{ readonly tally: Tally; readonly points: number; readonly sessions: number }> {
  const service = await Service.start({ servers: 1, gateways: 2, postgres });
  const tally = new Tally();
  try {
    const trainer = service.trainer();
    const callbackUrl = await trainer.listen();
    void trainer.read();
    const feeder = new Feeder(service, trainer, random, callbackUrl);
    const feeding = feeder.run();
    const plan = await planPoints(store, service, trainer);
    let points = 0;
    for (const [i, point] of plan.entries()) {
      if (await killOnce(service, point)) points++;
      const where = `${point.kind}, ${point.calls} ${point.n}`;
      progress.show(`${store}: kill point ${i + 1} of ${plan.length} (${where}), ${trainer.results.size} sessions`);
      if (i % REVIVE_INTERVAL === REVIVE_INTERVAL - 1) await revive(service);
    }
    await revive(service);
    feeder.stop();
    await feeding;
    await trainer.untilSettled(SETTLE_MS);
    await untilCalledBack(trainer);
    tally.add(await verdictOf(service), 'kill points');
    trainer.stop();
    return { tally, points, sessions: trainer.results.size };
  } finally {
    await service.close();
  }
}

async function planPoints(store: string, service: Service, trainer: Trainer): Promise<KillPoint[]> {
  const plan: KillPoint[] = [];
  for (const kind of ['server', 'gateway'] as const) {
    for (const calls of ['sync', 'send'] as const) {
      const last = await countScenarioCalls(service, kind, calls, trainer);
      const names = CALL_CLASSES[calls].join(', ');
      progress.print(`  ${store}: ${kind} makes ${last} ${calls} calls (${names}) in the scenario`);
      for (const n of spread(last, Math.ceil(POINTS / 4))) plan.push({ kind, calls, n });
    }
  }
  return plan;
}

/**
 * Counts the system calls of one class (`sync` or `send`) that a process makes while {@link SCENARIO_SESSIONS} sessions run. Returns the
 * count of the thread with the most calls, because strace counts each thread separately.
 */
async function countScenarioCalls(
  service: Service,
  kind: ProcessKind,
  calls: CallClass,
  trainer: Trainer,
): Promise<number> {
  return withLog(async (log) => {
    await restart(service, kind, (command) => logCalls(command, calls, log));
    const enough = trainer.results.size + SCENARIO_SESSIONS;
    await until(() => trainer.results.size >= enough, SETTLE_MS);
    await service.child(kind, 0).stop();
    const count = await countCalls(log);
    await restart(service, kind);
    return count;
  });
}

/**
 * Restarts a process under strace, which kills it before its n-th system call of a class (the kill point). Returns whether the process
 * reached this call.
 */
async function killOnce(service: Service, { kind, calls, n }: KillPoint): Promise<boolean> {
  // The previous kill point may have killed the server. It is started first, because a starting gateway waits for a server.
  if (kind === 'gateway' && !service.child('server', 0).isRunning) await service.startServer(0);
  const child = await restart(service, kind, (command) => killAt(command, calls, n));
  if (child === null) return true;
  const isReached = await Promise.race([child.exited.then(() => true), sleep(systemClock, REACH_MS).then(() => false)]);
  // Otherwise strace could kill the process later, while the next process that starts waits for it.
  if (!isReached) await child.kill();
  return isReached;
}

async function restart(service: Service, kind: ProcessKind, wrap?: Wrap): Promise<Child | null> {
  await service.child(kind, 0).kill();
  return service.start(kind, 0, wrap);
}

/** Restarts the server and the first gateway without strace. */
async function revive(service: Service): Promise<void> {
  for (const kind of ['server', 'gateway'] as const) await restart(service, kind);
}

/** Scenario S2: kills servers, gateways, spawn helpers and agents at random times while sessions run. */
async function killAtRandom(
  store: string,
  postgres: PostgresCluster | null,
): Promise<{
  readonly tally: Tally;
  readonly kills: number;
  readonly sessions: number;
  readonly throughput: number;
}> {
  const service = await Service.start({ servers: postgres === null ? 1 : 2, gateways: 3, postgres });
  const tally = new Tally();
  try {
    const trainer = service.trainer();
    const callbackUrl = await trainer.listen();
    void trainer.read();
    const feeder = new Feeder(service, trainer, random, callbackUrl, { outstanding: 60, pauseSeconds: 0.5 });
    const calmRate = await calmThroughput(trainer, feeder);
    const startedMs = systemClock.monotonicMs();
    const before = trainer.results.size;
    const feeding = feeder.run(SESSIONS);
    const restarts = new Set<Promise<void>>();
    let kills = 0;
    while (kills < KILLS || feeder.submitted < SESSIONS) {
      // Performs kills only as fast as sessions finish. Otherwise, on a slow machine, frequent kills would prevent sessions from finishing.
      const isAhead = kills / KILLS > (trainer.results.size - before) / SESSIONS + MAX_KILL_LEAD;
      if (!isAhead && (await killSomething(service, trainer, restarts))) kills++;
      progress.show(`${store}: ${kills} of ${KILLS} random kills, ${trainer.results.size} of ${SESSIONS} sessions`);
      if (feeder.submitted >= SESSIONS && kills < KILLS) await feeder.run(feeder.submitted + 50);
      await sleep(systemClock, 200 + random() * 600);
    }
    await Promise.all(restarts);
    feeder.stop();
    await feeding;
    const rate = (trainer.results.size - before) / ((systemClock.monotonicMs() - startedMs) / 1000);
    await trainer.untilSettled(SETTLE_MS);
    await untilCalledBack(trainer);
    tally.add(await verdictOf(service), 'random kills');
    return { tally, kills, sessions: trainer.results.size, throughput: Number((rate / calmRate).toFixed(2)) };
  } finally {
    await service.close();
  }
}

/**
 * Measures how many sessions per second finish without faults, in a short run of the same traffic. The rate under kills is divided by this
 * rate.
 */
async function calmThroughput(trainer: Trainer, feeder: Feeder): Promise<number> {
  const startedMs = systemClock.monotonicMs();
  await feeder.run(Math.min(200, Math.ceil(SESSIONS / 10)));
  await trainer.untilSettled(SETTLE_MS);
  return trainer.results.size / ((systemClock.monotonicMs() - startedMs) / 1000);
}

/**
 * Kills one randomly chosen process. Returns false when it killed none, for example because the chosen process is already being restarted.
 */
async function killSomething(service: Service, trainer: Trainer, restarts: Set<Promise<void>>): Promise<boolean> {
  const choice = random();
  const kill = (kind: ProcessKind, index: number, delayMs = 0): Promise<boolean> =>
    killAndRestart(service, trainer, restarts, kind, index, delayMs);
  if (choice < 0.25) return kill('server', randomIndex(random, service.servers.length));
  const index = randomIndex(random, service.gateways.length);
  if (choice < 0.55) return kill('gateway', index);
  if (choice < 0.65) {
    const gateway = service.child('gateway', index);
    // A gateway exits with an error by design when its spawn helper ends during startup. Only the helpers of started gateways are killed.
    const [helper] = gateway.isRunning && gateway.isReady ? childrenOf(gateway.pid) : [];
    if (helper === undefined || !killPid(helper)) return false;
    // A gateway cannot start sandboxes without its spawn helper, so the gateway is killed and restarted as well.
    return kill('gateway', index, SUPERVISOR_MS);
  }
  const agents = service.agents();
  return agents.length > 0 && killPid(pick(random, agents));
}

/** Kills a server or gateway and restarts it in the background. Returns false when it is not running or is already being restarted. */
async function killAndRestart(
  service: Service,
  trainer: Trainer,
  restarts: Set<Promise<void>>,
  kind: ProcessKind,
  index: number,
  delayMs: number,
): Promise<boolean> {
  const child = service.child(kind, index);
  if (!child.isRunning || child.isRestarting) return false;
  child.isRestarting = true;
  if (delayMs > 0) await sleep(systemClock, delayMs);
  await child.kill();
  const restarted = service
    .start(kind, index)
    .catch((error) => trainer.violations.push(`restart of ${kind} ${index}: ${asFloeError(error).message}`))
    .then(() => void restarts.delete(restarted));
  restarts.add(restarted);
  return true;
}

const stores = await withStores({ program: 'crash', stores: options.store, progress }, crashStore);
concludeStores(stores, json);
