// `npm run crash`: the service killed before its n-th write, sync or send for every n, and at random moments, over SQLite and PostgreSQL.
// Options: --points N (kill points, default 400 a store), --kills N (default 1000), --sessions N (default 5000), --store sqlite|postgres,
// --seed N, --quick (40 points, 40 kills, 200 sessions), --json.
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { startPostgres, whyNoPostgres } from '../services/postgres-cluster.mjs';
import { childrenOf, killAll, killPid } from './child.mjs';
import { Feeder, seeded } from './feeder.mjs';
import { CLASSES, callsIn, counted, killAt, spread, withLog } from './kill-points.mjs';
import { Progress } from './progress.mjs';
import { callbacksSettled } from './traffic.mjs';
import { complaints, World } from './world.mjs';

const { values: options } = parseArgs({
  options: {
    points: { type: 'string' },
    kills: { type: 'string' },
    sessions: { type: 'string' },
    store: { type: 'string', multiple: true },
    seed: { type: 'string', default: '1' },
    quick: { type: 'boolean', default: false },
    json: { type: 'boolean', default: false },
  },
});
const number = (name, usual, quick) => Number(options[name] ?? (options.quick ? quick : usual));
const POINTS = number('points', 400, 40);
const KILLS = number('kills', 1_000, 40);
const SESSIONS = number('sessions', 5_000, 200);
/** Sessions of the scenario whose calls are counted. */
const SCENARIO_SESSIONS = 20;
/** After so many points everything is brought to rest and checked, so that a failure can be told from its neighbours. */
const CHECK_EVERY = 25;
/** A point that this much traffic does not reach is not counted. */
const REACH_MS = 8_000;
/** As a share of all kills. */
const KILLS_AHEAD = 0.05;
/** How long everything may take to end once nothing is killed any more. */
const SETTLE_MS = 60_000;

const random = seeded(Number(options.seed));
const progress = new Progress();

async function main() {
  const stores = options.store ?? ['sqlite', 'postgres'];
  const report = {};
  for (const store of stores) report[store] = await crashStore(store);
  const wrong = Object.values(report).some(
    (one) => one !== null && one.lost + one.duplicated + one.leaked + one.wrong > 0,
  );
  if (options.json) console.log(JSON.stringify({ stores: report }));
  process.exitCode = wrong ? 1 : 0;
}

async function crashStore(store) {
  const postgres = store === 'postgres' ? await openPostgres() : null;
  if (store === 'postgres' && postgres === null) return null;
  try {
    const matrix = await killMatrix(store, postgres);
    const storm = await killStorm(store, postgres);
    const sum = (name) => matrix[name] + storm[name];
    const row = {
      points: matrix.points,
      kills: storm.kills,
      sessions: matrix.sessions + storm.sessions,
      lost: sum('lost'),
      duplicated: sum('duplicated'),
      leaked: sum('leaked'),
      wrong: sum('wrong'),
      slowest_recovery_s: Number((Math.max(matrix.slowestMs, storm.slowestMs) / 1000).toFixed(2)),
      throughput_under_kills: storm.throughput,
    };
    progress.done(
      `crash ${store}: points ${row.points}, kills ${row.kills}, sessions ${row.sessions}, lost ${row.lost}, duplicated ${row.duplicated}, leaked ${row.leaked}, wrong ${row.wrong}, slowest recovery ${row.slowest_recovery_s} s`,
    );
    return row;
  } finally {
    await postgres?.stop();
  }
}

async function openPostgres() {
  const why = whyNoPostgres();
  if (why === null) return startPostgres();
  progress.done(`crash postgres: skipped: ${why}`);
  return null;
}

/** Counts what of a verdict is bad, and says it. */
class Tally {
  constructor() {
    Object.assign(this, { lost: 0, duplicated: 0, leaked: 0, wrong: 0, sessions: 0, slowestMs: 0 });
    this.told = new Set();
  }

  add(verdict, where) {
    for (const text of complaints(verdict)) {
      if (this.told.has(text)) continue;
      this.told.add(text);
      this[text.split(':')[0]]++;
      progress.done(`  ${where}: ${text}`);
    }
    this.slowestMs = Math.max(this.slowestMs, verdict.slowestRecoveryMs);
  }
}

/** S1: every point of server and gateway, one after the other, under steady traffic. Each start is killed at its own point. */
async function killMatrix(store, postgres) {
  const world = await World.start({ servers: 1, gateways: 2, postgres });
  const tally = new Tally();
  try {
    const trainer = world.trainer();
    const callbackUrl = await trainer.listen();
    const reading = trainer.read();
    const feeder = new Feeder(world, trainer, { random, callbackUrl });
    const feeding = feeder.run().catch((error) => trainer.wrongs.push(`submitting: ${error.code}: ${error.message}`));
    const plan = [];
    for (const kind of ['server', 'gateway']) {
      for (const calls of Object.keys(CLASSES)) {
        const last = await countCalls(world, kind, calls, trainer);
        progress.done(
          `  ${store}: ${kind} makes ${last} ${calls} calls (${CLASSES[calls].join(', ')}) in the scenario`,
        );
        for (const n of spread(last, Math.ceil(POINTS / 4))) plan.push({ kind, calls, n });
      }
    }
    let points = 0;
    for (const [i, { kind, calls, n }] of plan.entries()) {
      if (await killOnce(world, kind, calls, n)) points++;
      progress.show(
        `${store}: kill point ${i + 1} of ${plan.length} (${kind}, ${calls} ${n}), ${trainer.results.size} sessions`,
      );
      if (i % CHECK_EVERY === CHECK_EVERY - 1) await revive(world);
    }
    await revive(world);
    feeder.stop();
    await feeding;
    await trainer.settled(SETTLE_MS).catch((error) => trainer.wrongs.push(error.message));
    await callbacksSettled(trainer);
    tally.add(await world.verdict(), 'kill points');
    trainer.stopped = true;
    void reading;
    return { ...tally, points, sessions: trainer.results.size };
  } finally {
    await world.close();
  }
}

async function countCalls(world, kind, calls, trainer) {
  return withLog(async (log) => {
    await restart(world, kind, (_, command) => counted(command, calls, log));
    const before = trainer.results.size;
    const deadline = performance.now() + SETTLE_MS;
    while (trainer.results.size < before + SCENARIO_SESSIONS && performance.now() < deadline) await sleep(20);
    await stopOne(world, kind);
    const last = await callsIn(log);
    await restart(world, kind);
    return last;
  });
}

/** True when the process died at the point. */
async function killOnce(world, kind, calls, n) {
  // A gateway that comes up waits for a server; the last point may have killed that.
  if (kind === 'gateway' && !world.servers[0].running) await world.startServer(0);
  const child = await restart(world, kind, (_, command) => killAt(command, calls, n));
  if (child === null) return true;
  return Promise.race([child.exited.then(() => true), sleep(REACH_MS).then(() => false)]);
}

async function stopOne(world, kind) {
  await (kind === 'server' ? world.servers : world.gateways)[0].stop();
}

async function restart(world, kind, wrap) {
  const list = kind === 'server' ? world.servers : world.gateways;
  await list[0]?.kill();
  return kind === 'server' ? world.startServer(0, wrap) : world.startGateway(0, wrap);
}

/** Server and gateways run untraced, and have finished what there is. */
async function revive(world) {
  for (const kind of ['server', 'gateway']) await restart(world, kind);
}

/** S2: random kills of server, gateways, spawn helpers and agents while sessions run. */
async function killStorm(store, postgres) {
  const servers = postgres === null ? 1 : 2;
  const world = await World.start({ servers, gateways: 3, postgres });
  const tally = new Tally();
  try {
    const trainer = world.trainer();
    const callbackUrl = await trainer.listen();
    void trainer.read();
    const feeder = new Feeder(world, trainer, { random, callbackUrl, outstanding: 60, pauseSeconds: 0.5 });
    const calmRate = await calmThroughput(trainer, feeder);
    const startedMs = performance.now();
    const before = trainer.results.size;
    const feeding = feeder
      .run(SESSIONS)
      .catch((error) => trainer.wrongs.push(`submitting: ${error.code}: ${error.message}`));
    const restarts = new Set();
    let kills = 0;
    while (kills < KILLS || feeder.submitted < SESSIONS) {
      // Spread over all of the sessions, however slow the machine is: kills alone would leave no time to work.
      const ahead = kills / KILLS > (trainer.results.size - before) / SESSIONS + KILLS_AHEAD;
      if (!ahead && (await killSomething(world, restarts))) kills++;
      progress.show(`${store}: ${kills} of ${KILLS} random kills, ${trainer.results.size} of ${SESSIONS} sessions`);
      if (feeder.submitted >= SESSIONS && kills < KILLS) await feeder.run(feeder.submitted + 50);
      await sleep(200 + random() * 600);
    }
    await Promise.all(restarts);
    feeder.stop();
    await feeding;
    const rate = (trainer.results.size - before) / ((performance.now() - startedMs) / 1000);
    await trainer.settled(SETTLE_MS).catch((error) => trainer.wrongs.push(error.message));
    await callbacksSettled(trainer);
    tally.add(await world.verdict(), 'random kills');
    return { ...tally, kills, sessions: trainer.results.size, throughput: Number((rate / calmRate).toFixed(2)) };
  } finally {
    await world.close();
  }
}

/** Sessions per second without faults, over a short run of the same traffic. */
async function calmThroughput(trainer, feeder) {
  const startedMs = performance.now();
  await feeder.run(Math.min(200, Math.ceil(SESSIONS / 10)));
  await trainer.settled(SETTLE_MS);
  return trainer.results.size / ((performance.now() - startedMs) / 1000);
}

async function killSomething(world, restarts) {
  const choice = random();
  if (choice < 0.25) return killAndRestart(world, restarts, 'server', Math.floor(random() * world.servers.length));
  const i = Math.floor(random() * world.gateways.length);
  if (choice < 0.55) return killAndRestart(world, restarts, 'gateway', i);
  if (choice < 0.65) {
    // One that is still starting would end with an error instead, as it should.
    const { running, started, pid } = world.gateways[i];
    const [helper] = running && started ? childrenOf(pid) : [];
    if (helper === undefined || !killPid(helper)) return false;
    // A node without its spawn helper is of no use: a supervisor replaces it.
    return killAndRestart(world, restarts, 'gateway', i, 300);
  }
  const agents = world.agents();
  return agents.length > 0 && killPid(agents[Math.floor(random() * agents.length)]);
}

async function killAndRestart(world, restarts, kind, i, delayMs = 0) {
  const child = (kind === 'server' ? world.servers : world.gateways)[i];
  if (!child.running || child.restarting) return false;
  child.restarting = true;
  if (delayMs > 0) await sleep(delayMs);
  await child.kill();
  const again = (kind === 'server' ? world.startServer(i) : world.startGateway(i)).catch((error) =>
    world.trainers[0].wrongs.push(`restart of ${kind} ${i}: ${error.message}`),
  );
  restarts.add(again.finally(() => restarts.delete(again)));
  return true;
}

try {
  await main();
} finally {
  await killAll();
}
