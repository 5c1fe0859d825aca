// What the proxy adds to a model call, as its client sees it, and what it costs in CPU. Journal and fsync are on.
//
//   node bench/proxy.mjs [--quick] [--json] [--only=CASE] [--profile=DIRECTORY]
//
// Four processes: a stub engine with prepared vLLM replies, the proxy, a bare proxy as the floor, and this one as the client. Every
// round calls the engine, the floor and the proxy one after the other, so that a slow moment of the machine hits all of them.
import { fork } from 'node:child_process';
import { constants } from 'node:fs';
import { mkdtemp, open, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { performance } from 'node:perf_hooks';
import { fileURLToPath } from 'node:url';
import { Client, Pool } from 'undici';
import {
  bodiesOf,
  CHAT_PATH,
  callsOf,
  conversation,
  conversationsOf,
  converse,
  round,
  SMALL,
  send,
  TURN,
} from './proxy-turns.mjs';
import { machine, median, percentile, round as rounded } from './report.mjs';

/** Turns of one session before the next one begins. */
const TURNS_PER_SESSION = 50;
/** At 64 connections the engine takes this long, so that the client's own queueing does not hide the proxy's. */
const PACED_MS = 25;
/** Sessions that the client carries on are spliced onto their last turn, all but their first calls. */
const LEAST_SPLICED = 0.9;
/** Sessions at once: each has its own connection, a share of them their own socket; an engine takes seconds for a turn. */
const CROWD = { sessions: 1_024, sockets: 512, engineMs: 10_000, limitMs: 60_000 };

const option = (name) => process.argv.find((arg) => arg.startsWith(`--${name}=`))?.slice(name.length + 3) ?? null;
const quick = process.argv.includes('--quick');
const [only, profile] = [option('only'), option('profile')];

function start(file, ...args) {
  const path = fileURLToPath(new URL(file, import.meta.url));
  const profiling = profile && args[0] === 'proxy' ? ['--cpu-prof', `--cpu-prof-dir=${profile}`] : [];
  const execArgv = ['--expose-gc', ...profiling];
  const child = fork(path, args, { execArgv, stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
  const waiting = new Map();
  let asked = 0;
  const answer = (ask) => new Promise((resolve, reject) => waiting.set(ask, { resolve, reject }));
  const ready = answer(undefined);
  child.on('message', (message) => {
    waiting.get(message.ask).resolve(message);
    waiting.delete(message.ask);
  });
  child.on('exit', (code) => {
    for (const { reject } of waiting.values()) reject(new Error(`${file} ended with ${code}`));
  });
  return {
    ready,
    ask: (kind, message = {}) => {
      const ask = ++asked;
      child.send({ ...message, ask, kind });
      return answer(ask);
    },
    stop: () => child.disconnect(),
  };
}

/** What the disk alone takes for one small record: it is part of every call's added latency. Median, ms. */
async function measureSync(directory) {
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_APPEND | constants.O_DSYNC;
  const file = await open(join(directory, 'sync'), flags);
  const record = Buffer.alloc(1_200, 1);
  const latencies = [];
  for (let i = 0; i < 500; i++) {
    const startMs = performance.now();
    await file.write(record);
    latencies.push(performance.now() - startMs);
  }
  await file.close();
  return median(latencies);
}

/** Runs `work` with fresh sessions; the process's CPU time for one of its calls, and how they were prompted. */
async function withSessions(rig, opening, work) {
  const { sessions } = await rig.proxy.ask('open', opening);
  const before = await rig.proxy.ask('usage');
  const latencies = await work(sessions.map(({ key }) => `/s/${key}${CHAT_PATH}`));
  const { us } = await rig.proxy.ask('usage');
  const { completions, spliced } = await rig.proxy.ask('closeAll');
  if (completions !== latencies.length) {
    throw new Error(`${latencies.length} calls, but ${completions} completions recorded`);
  }
  return { latencies, cpuUs: (us - before.us) / completions, spliced: spliced / completions };
}

async function throughFloor(rig, body, load) {
  const before = await rig.floor.ask('usage');
  const latencies = await round(rig.throughFloor, [`/s/0${CHAT_PATH}`], body, load);
  const { us } = await rig.floor.ask('usage');
  return { latencies, cpuUs: (us - before.us) / load.calls };
}

/** Medians of the rounds; what is compared is compared within each round. */
async function measure(rig, kind, { connections, calls, rounds, delayMs = 0, mode = 'chat' }) {
  await rig.engine.ask('delay', { delayMs });
  const body = bodiesOf(kind);
  const load = { connections, calls };
  const found = [];
  // The first round only warms up.
  for (let i = 0; i <= rounds; i++) {
    const direct = await round(rig.direct, [CHAT_PATH], body, load);
    const floor = await throughFloor(rig, body, load);
    const count = mode === 'tokens' ? conversationsOf(calls) : Math.ceil(calls / TURNS_PER_SESSION);
    const proxied = await withSessions(rig, { count, mode }, (paths) =>
      mode === 'tokens' ? converse(rig.through, paths, load) : round(rig.through, paths, body, load),
    );
    if (mode === 'tokens' && proxied.spliced < LEAST_SPLICED) throw new Error(`only ${proxied.spliced} were spliced`);
    if (i > 0) found.push(rowOf(direct, floor, proxied));
  }
  const row = Object.fromEntries(Object.keys(found[0]).map((key) => [key, median(found.map((each) => each[key]))]));
  return { connections, ...row };
}

function rowOf(direct, floor, proxied) {
  const added = (latencies, q) => percentile(latencies, q) - percentile(direct, q);
  return {
    direct_p50_ms: percentile(direct, 0.5),
    proxied_p50_ms: percentile(proxied.latencies, 0.5),
    added_p50_ms: added(proxied.latencies, 0.5),
    added_p99_ms: added(proxied.latencies, 0.99),
    floor_added_p50_ms: added(floor.latencies, 0.5),
    cpu_us: proxied.cpuUs,
    floor_cpu_us: floor.cpuUs,
    cpu_over_floor: proxied.cpuUs / floor.cpuUs,
    spliced: proxied.spliced,
  };
}

/** Many sessions at once: half of them stream in chat mode, half carry on conversations in tokens mode; half have their own sockets. */
async function crowd(rig, { turns }) {
  await rig.engine.ask('delay', { delayMs: CROWD.engineMs });
  const half = CROWD.sessions / 2;
  const open = (mode) => rig.proxy.ask('open', { count: half, mode, sockets: CROWD.sockets / 2 });
  const sessions = [...(await open('chat')).sessions, ...(await open('tokens')).sessions];
  const body = bodiesOf(TURN);
  let sent = 0;
  const streamed = () => ({ body: () => body(sent++).replace('{', '{"stream":true,'), heard() {} });
  const idle = rig.floor;
  await Promise.all([rig.proxy.ask('resetLag'), idle.ask('resetLag')]);
  const before = await rig.proxy.ask('usage');
  const startMs = performance.now();
  const failures = { timeouts: 0, errors: 0 };
  const one = async ({ key, socketPath }, index) => {
    const client = new Client(rig.origin, { socketPath, headersTimeout: 0, bodyTimeout: 0 });
    // Agents do not act in step.
    await new Promise((resolve) => setTimeout(resolve, (CROWD.engineMs * index * 0.618) % CROWD.engineMs));
    const talk = index < half ? streamed() : conversation(index);
    for (let turn = 0; turn < turns; turn++) {
      try {
        talk.heard(await send(client, `/s/${key}${CHAT_PATH}`, talk.body(), AbortSignal.timeout(CROWD.limitMs)));
      } catch (error) {
        if (error.name === 'TimeoutError') failures.timeouts++;
        else if (failures.errors++ === 0) console.error(error);
      }
    }
    await client.close();
  };
  await Promise.all(sessions.map(one));
  const wallS = (performance.now() - startMs) / 1000;
  const { us } = await rig.proxy.ask('usage');
  const [lag, idleLag] = [await rig.proxy.ask('lag'), await idle.ask('lag')];
  const closed = await rig.proxy.ask('closeAll');
  if (failures.errors > 0) throw new Error(`${failures.errors} calls of ${CROWD.sessions} sessions failed`);
  const calls = CROWD.sessions * turns;
  if (closed.completions !== calls - failures.timeouts)
    throw new Error(`${calls} calls, but ${closed.completions} completions`);
  const cpu_us = (us - before.us) / calls;
  return { ...failures, calls, wall_s: wallS, cpu_us, lag, idle_lag: idleLag };
}

/** Small calls of sessions that open and close: what is still held after all of them, beside what was after a warm-up. */
async function growth(rig, { calls, warmUp }) {
  await rig.engine.ask('delay', { delayMs: 0 });
  const body = bodiesOf(SMALL);
  const perRound = 1_000;
  const run = async (count) => {
    for (let done = 0; done < count; done += perRound) {
      await withSessions(rig, { count: 50, mode: 'chat' }, (paths) =>
        round(rig.through, paths, body, { connections: 32, calls: perRound }),
      );
    }
    return rig.proxy.ask('memory');
  };
  const before = await run(warmUp);
  const after = await run(calls);
  const grown = (key) => after[key] - before[key];
  return { calls, rss_mb: after.rssMb, rss: grown('rssMb'), heap: grown('heapMb'), external: grown('externalMb') };
}

async function main() {
  const directory = await mkdtemp(join(tmpdir(), 'floe-bench-'));
  const engine = start('stub-engine.mjs');
  const engineUrl = `http://127.0.0.1:${(await engine.ready).port}`;
  const proxy = start('proxy-process.mjs', 'proxy', engineUrl, directory);
  const floor = start('proxy-process.mjs', 'floor', engineUrl, directory);
  try {
    const pool = (origin) => new Pool(origin, { connections: 64, pipelining: 1, headersTimeout: 0, bodyTimeout: 0 });
    const local = async ({ ready }) => `http://127.0.0.1:${(await ready).port}`;
    const origin = await local(proxy);
    const pools = { direct: pool(engineUrl), through: pool(origin), throughFloor: pool(await local(floor)) };
    const rig = { engine, proxy, floor, origin, ...pools };
    const n = (calls) => Math.max(60, Math.round(calls * (quick ? 0.1 : 1)));
    const plans = {
      small_c1: () => measure(rig, SMALL, { connections: 1, calls: n(2_000), rounds: 7 }),
      small_c64: () => measure(rig, SMALL, { connections: 64, calls: n(4_000), rounds: 5, delayMs: PACED_MS }),
      turn_c1: () => measure(rig, TURN, { connections: 1, calls: n(400), rounds: 7 }),
      turn_c64: () => measure(rig, TURN, { connections: 64, calls: n(1_000), rounds: 7, delayMs: PACED_MS }),
      tokens_c64: () =>
        measure(rig, TURN, {
          connections: 64,
          calls: quick ? callsOf(8) : callsOf(64),
          rounds: quick ? 3 : 7,
          delayMs: PACED_MS,
          mode: 'tokens',
        }),
      growth: () => growth(rig, { calls: n(100_000), warmUp: n(20_000) }),
      crowd: () => crowd(rig, { turns: quick ? 1 : 3 }),
    };
    const found = {};
    for (const [name, plan] of Object.entries(plans)) {
      if (only === null || only.split(',').includes(name)) found[name] = await plan();
    }
    await Promise.all(Object.values(pools).map((each) => each.close()));
    report(found, await measureSync(directory));
  } finally {
    for (const child of [engine, proxy, floor]) child.stop();
    await rm(directory, { recursive: true, force: true });
  }
}

const rateOf = (row) => (row === undefined ? null : Math.round(1e6 / row.cpu_us));
const shown = (value) => (value === undefined || value === null ? null : rounded(value, 3));

function report({ growth: grown, crowd: many, ...cases }, syncMs) {
  const { small_c1: small, small_c64: smallMany, turn_c1: turn, turn_c64: turns, tokens_c64: tokens } = cases;
  const rows = Object.fromEntries(
    Object.entries(cases).map(([name, row]) => [
      name,
      Object.fromEntries(Object.entries(row).map(([key, value]) => [key, shown(value)])),
    ]),
  );
  const result = {
    added_p50_ms_c1: shown(small?.added_p50_ms),
    added_p99_ms_c64: shown(smallMany?.added_p99_ms),
    turns_per_cpu_s: rateOf(turns),
    turns_per_cpu_s_c1: rateOf(turn),
    turns_per_cpu_s_tokens: rateOf(tokens),
    cpu_over_floor: shown(turns?.cpu_over_floor),
    cpu_over_floor_tokens: shown(tokens?.cpu_over_floor),
    cpu_us_small: small === undefined ? null : Math.round(small.cpu_us),
    timeouts_1024: many?.timeouts ?? null,
    loop_lag_p99_ms: shown(many?.lag.p99),
    loop_lag_idle_p99_ms: shown(many?.idle_lag.p99),
    rss_growth_mb: shown(grown?.rss),
    heap_growth_mb: shown(grown?.heap),
    sync_p50_ms: shown(syncMs),
    cases: rows,
  };
  console.table(
    Object.fromEntries(
      Object.entries(rows).map(([name, { connections: _, direct_p50_ms: __, ...row }]) => [name, row]),
    ),
  );
  if (grown !== undefined) {
    const { calls, rss_mb, rss, heap, external } = grown;
    const parts = `heap ${rounded(heap)}, external ${rounded(external)}`;
    console.log(`memory over ${calls} calls: RSS ${rounded(rss)} MB of ${rounded(rss_mb)} (${parts})`);
  }
  if (many !== undefined) {
    const { calls, wall_s, cpu_us, timeouts, lag, idle_lag } = many;
    console.log(
      `${CROWD.sessions} sessions at once: ${calls} calls in ${rounded(wall_s)} s, ${timeouts} timeouts, 0 errors, ` +
        `${Math.round(cpu_us)} us CPU each; event loop late by p50 ${rounded(lag.p50)} ms, p99 ${rounded(lag.p99)} ms, ` +
        `at most ${rounded(lag.max)} ms (a process with nothing to do: p99 ${rounded(idle_lag.p99)} ms)`,
    );
  }
  console.log(
    `small call: +${result.added_p50_ms_c1} ms p50 at 1 connection (the floor +${shown(small?.floor_added_p50_ms)} ms, one synced append ${result.sync_p50_ms} ms), ${result.cpu_us_small} us CPU`,
  );
  console.log(
    `realistic turn: ${result.turns_per_cpu_s} per CPU second in chat mode (${result.cpu_over_floor} times the floor's CPU), ${result.turns_per_cpu_s_tokens} in tokens mode`,
  );
  const { cpu, cores, node, commit } = machine();
  console.log(`${cpu}, ${cores} cores, Node ${node}, commit ${commit}`);
  if (process.argv.includes('--json')) console.log(JSON.stringify({ ...result, cpu, cores, node, commit }));
}

await main();
