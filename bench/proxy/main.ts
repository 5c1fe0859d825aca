// Measures the latency that the proxy adds to a model call, as seen by the client, and the proxy's CPU time. The journal is written and
// synced (fsync) as in production.
//
//   npm run bench -- proxy [--quick] [--json] [--only=CASE,…] [--profile=DIRECTORY] [--journal=batched]
//
// The bench uses four processes: a stub engine with prepared vLLM replies, the proxy, a minimal proxy for comparison (the floor), and this
// process as the client. Every round calls the engine directly, through the floor and through the proxy, one after the other, so that a
// temporary slowdown of the machine affects all three.
import { constants } from 'node:fs';
import { mkdtemp, open, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { abortAfter, sleep, systemClock } from '@floe-rl/core';
import { Client, Pool } from 'undici';
import { knownNames } from '../../tools/known-names.ts';
import { type BenchChild, cpuUs, startChild } from '../child.ts';
import { machine, median, percentile, round as rounded } from '../report.ts';
import {
  bodiesOf,
  type CallKind,
  CHAT_PATH,
  callsOf,
  conversation,
  conversationsOf,
  converse,
  type Load,
  round,
  SMALL,
  send,
  TURN,
} from './client.ts';

/** Number of calls that each proxy session makes in a round in chat mode. A round opens as many sessions as its calls need. */
const TURNS_PER_SESSION = 50;
/**
 * Time in ms that the engine takes for a reply in rounds with 64 connections. With immediate replies, queueing in the client would hide the
 * latency that the proxy adds.
 */
const PACED_MS = 25;
/**
 * In tokens mode (prompts are sent as token ids), at least this share of the calls must have a prompt that continues a recorded turn. The
 * first call of a session never has such a prompt.
 */
const MIN_SPLICED = 0.9;
/**
 * Parameters of the case `crowd`, which runs many sessions concurrently. Each session has its own connection. `sockets` is the number of
 * sessions that have a separate Unix socket. The engine takes `engineMs` for a reply. A call without a reply after `limitMs` counts as a
 * timeout.
 */
const CROWD = { sessions: 1_024, sockets: 512, engineMs: 10_000, limitMs: 60_000 };

type Mode = 'chat' | 'tokens';
type OpenSession = { readonly key: string; readonly socketPath: string | null };
type Lag = { readonly p50: number; readonly p99: number; readonly max: number };
type Memory = { readonly rssMb: number; readonly heapMb: number; readonly externalMb: number };

type Rig = {
  readonly engine: BenchChild;
  readonly proxy: BenchChild;
  readonly floor: BenchChild;
  readonly origin: string;
  readonly direct: Pool;
  readonly through: Pool;
  readonly throughFloor: Pool;
};

/** Latency of each call in ms, and mean CPU time per call in microseconds. */
type Measured = { readonly latencies: readonly number[]; readonly cpuUs: number };

const option = (name: string): string | null =>
  process.argv.find((arg) => arg.startsWith(`--${name}=`))?.slice(name.length + 3) ?? null;
const isQuick = process.argv.includes('--quick');

function startProcess(role: 'engine' | 'proxy' | 'floor', ...args: readonly string[]): Promise<BenchChild> {
  const profile = option('profile');
  const execArgv = profile !== null && role === 'proxy' ? ['--cpu-prof', `--cpu-prof-dir=${profile}`] : [];
  if (role === 'engine') return startChild(new URL('./stub-engine-process.js', import.meta.url), []);
  return startChild(new URL('./proxy-process.js', import.meta.url), [role, ...args], { execArgv });
}

function must(value: number | null): number {
  if (value === null) throw new Error('nothing was measured');
  return value;
}

/** Time of a synced append of a small record: the median that it takes, in ms, and the CPU time of the process for each, in µs. */
type SyncCost = { readonly ms: number; readonly cpuUs: number };

/**
 * Measures how long it takes to write and sync one small record. Every call through the proxy includes this time, because the proxy syncs its
 * journal. With one connection, no other call shares the CPU time of the sync.
 */
async function measureSync(directory: string): Promise<SyncCost> {
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_APPEND | constants.O_DSYNC;
  const file = await open(join(directory, 'sync'), flags);
  const record = Buffer.alloc(1_200, 1);
  const append = async (count: number): Promise<SyncCost> => {
    const latencies: number[] = [];
    const beforeUs = cpuUs();
    for (let i = 0; i < count; i++) {
      const startMs = systemClock.monotonicMs();
      await file.write(record);
      latencies.push(systemClock.monotonicMs() - startMs);
    }
    return { ms: must(median(latencies)), cpuUs: (cpuUs() - beforeUs) / count };
  };
  await append(200);
  const cost = await append(1_000);
  await file.close();
  return cost;
}

async function cpuUsOf(child: BenchChild): Promise<number> {
  const { us } = (await child.request('usage')) as { us: number };
  return us;
}

/**
 * Opens proxy sessions, runs `work` with their URL paths and closes them. `spliced` in the result is the share of calls whose prompt
 * continued a recorded turn.
 */
async function withSessions(
  { proxy }: Rig,
  opening: { readonly count: number; readonly mode: Mode },
  work: (paths: readonly string[]) => Promise<number[]>,
): Promise<Measured & { readonly spliced: number }> {
  const { sessions } = (await proxy.request('open', opening)) as { sessions: OpenSession[] };
  const before = await cpuUsOf(proxy);
  const latencies = await work(sessions.map(({ key }) => `/s/${key}${CHAT_PATH}`));
  const after = await cpuUsOf(proxy);
  const { completions, spliced } = (await proxy.request('closeAll')) as { completions: number; spliced: number };
  if (completions !== latencies.length) throw new Error(`${latencies.length} calls, but ${completions} completions`);
  return { latencies, cpuUs: (after - before) / completions, spliced: spliced / completions };
}

async function throughFloor(rig: Rig, body: (nonce: number) => string, load: Load): Promise<Measured> {
  const before = await cpuUsOf(rig.floor);
  const latencies = await round(rig.throughFloor, [`/s/0${CHAT_PATH}`], body, load);
  return { latencies, cpuUs: ((await cpuUsOf(rig.floor)) - before) / load.calls };
}

type Plan = Load & { readonly rounds: number; readonly delayMs?: number; readonly mode?: Mode };

/**
 * Measures calls of one size. Returns the medians over all rounds. Each round measures calls to the engine directly, through a minimal
 * proxy (the floor) and through floe's proxy, and compares them.
 */
async function measure(
  rig: Rig,
  kind: CallKind,
  { connections, calls, rounds, delayMs = 0, mode = 'chat' }: Plan,
): Promise<Row> {
  await rig.engine.request('delay', { delayMs });
  const body = bodiesOf(kind);
  const load = { connections, calls };
  const rows: Row[] = [];
  // Round 0 is a warm-up and is not counted.
  for (let i = 0; i <= rounds; i++) {
    const direct = await round(rig.direct, [CHAT_PATH], body, load);
    const floor = await throughFloor(rig, body, load);
    const count = mode === 'tokens' ? conversationsOf(calls) : Math.ceil(calls / TURNS_PER_SESSION);
    const proxied = await withSessions(rig, { count, mode }, (paths) =>
      mode === 'tokens' ? converse(rig.through, paths, load) : round(rig.through, paths, body, load),
    );
    if (mode === 'tokens' && proxied.spliced < MIN_SPLICED) {
      throw new Error(`only ${proxied.spliced} of the calls continued a recorded turn`);
    }
    if (i > 0) rows.push(rowOf(connections, direct, floor, proxied));
  }
  const [first] = rows;
  if (first === undefined) throw new Error('there was no round');
  const names = Object.keys(first) as (keyof Row)[];
  return Object.fromEntries(names.map((name) => [name, median(rows.map((row) => row[name]))])) as Row;
}

type Row = ReturnType<typeof rowOf>;

function rowOf(
  connections: number,
  direct: readonly number[],
  floor: Measured,
  proxied: Measured & { readonly spliced: number },
) {
  const at = (latencies: readonly number[], share: number): number => must(percentile(latencies, share));
  const added = (latencies: readonly number[], share: number): number => at(latencies, share) - at(direct, share);
  return {
    connections,
    direct_p50_ms: at(direct, 0.5),
    proxied_p50_ms: at(proxied.latencies, 0.5),
    added_p50_ms: added(proxied.latencies, 0.5),
    added_p99_ms: added(proxied.latencies, 0.99),
    floor_added_p50_ms: added(floor.latencies, 0.5),
    cpu_us: proxied.cpuUs,
    floor_cpu_us: floor.cpuUs,
    cpu_over_floor: proxied.cpuUs / floor.cpuUs,
    spliced: proxied.spliced,
  };
}

type CrowdResult = {
  readonly timeouts: number;
  readonly calls: number;
  readonly wallS: number;
  readonly cpuUs: number;
  readonly lag: Lag;
  readonly idleLag: Lag;
};

/**
 * Runs many sessions concurrently. One half streams replies in chat mode (prompts are sent as messages). The other half continues
 * conversations in tokens mode (prompts are sent as token ids). Half of the sessions of each mode have a separate Unix socket.
 */
async function crowd(rig: Rig, turns: number): Promise<CrowdResult> {
  await rig.engine.request('delay', { delayMs: CROWD.engineMs });
  const half = CROWD.sessions / 2;
  const openHalf = async (mode: Mode): Promise<OpenSession[]> => {
    const opening = { count: half, mode, sockets: CROWD.sockets / 2 };
    return ((await rig.proxy.request('open', opening)) as { sessions: OpenSession[] }).sessions;
  };
  const sessions = [...(await openHalf('chat')), ...(await openHalf('tokens'))];
  const body = bodiesOf(TURN);
  let sent = 0;
  let timeouts = 0;
  let errors = 0;
  const streamed = { body: () => body(sent++).replace('{', '{"stream":true,'), addReply: () => {} };
  await Promise.all([rig.proxy.request('resetLag'), rig.floor.request('resetLag')]);
  const before = await cpuUsOf(rig.proxy);
  const startMs = systemClock.monotonicMs();
  const runSession = async ({ key, socketPath }: OpenSession, index: number): Promise<void> => {
    const client = new Client(rig.origin, {
      ...(socketPath === null ? {} : { socketPath }),
      headersTimeout: 0,
      bodyTimeout: 0,
    });
    // Delays the start of each session by a different time, because real agents do not start at the same moment.
    await sleep(systemClock, (CROWD.engineMs * index * 0.618) % CROWD.engineMs);
    const talk = index < half ? streamed : conversation(index);
    for (let turn = 0; turn < turns; turn++) {
      const limit = abortAfter(systemClock, CROWD.limitMs, () => new Error('no reply in time'));
      try {
        talk.addReply(await send(client, `/s/${key}${CHAT_PATH}`, talk.body(), limit.signal));
      } catch (error) {
        if (limit.signal.aborted) timeouts++;
        else if (errors++ === 0) console.error(error);
      } finally {
        limit.release();
      }
    }
    await client.close();
  };
  await Promise.all(sessions.map(runSession));
  const wallS = (systemClock.monotonicMs() - startMs) / 1000;
  const cpuUs = (await cpuUsOf(rig.proxy)) - before;
  const lag = (await rig.proxy.request('lag')) as Lag;
  const idleLag = (await rig.floor.request('lag')) as Lag;
  const { completions } = (await rig.proxy.request('closeAll')) as { completions: number };
  if (errors > 0) throw new Error(`${errors} calls of ${CROWD.sessions} sessions failed`);
  const calls = CROWD.sessions * turns;
  if (completions !== calls - timeouts) throw new Error(`${calls} calls, but ${completions} completions`);
  return { timeouts, calls, wallS, cpuUs: cpuUs / calls, lag, idleLag };
}

type Growth = {
  readonly calls: number;
  readonly rssTotalMb: number;
  readonly rssMb: number;
  readonly heapMb: number;
  readonly externalMb: number;
};

/**
 * Sends small calls through sessions that are opened and closed. Returns by how much the proxy's memory grew from the end of a warm-up to
 * the end of all calls.
 */
async function growth(rig: Rig, calls: number, warmUpCalls: number): Promise<Growth> {
  await rig.engine.request('delay', { delayMs: 0 });
  const body = bodiesOf(SMALL);
  const perRound = 1_000;
  const run = async (count: number): Promise<Memory> => {
    for (let done = 0; done < count; done += perRound) {
      await withSessions(rig, { count: 50, mode: 'chat' }, (paths) =>
        round(rig.through, paths, body, { connections: 32, calls: perRound }),
      );
    }
    return (await rig.proxy.request('memory')) as Memory;
  };
  const before = await run(warmUpCalls);
  const after = await run(calls);
  return {
    calls,
    rssTotalMb: after.rssMb,
    rssMb: after.rssMb - before.rssMb,
    heapMb: after.heapMb - before.heapMb,
    externalMb: after.externalMb - before.externalMb,
  };
}

const CASE_NAMES = ['small_c1', 'small_c64', 'turn_c1', 'turn_c64', 'tokens_c64'] as const;

async function main(): Promise<void> {
  const only = knownNames('only', option('only'), [...CASE_NAMES, 'growth', 'crowd']);
  const directory = await mkdtemp(join(tmpdir(), 'floe-bench-'));
  const children: BenchChild[] = [];
  const start = async (...args: Parameters<typeof startProcess>): Promise<BenchChild> => {
    const child = await startProcess(...args);
    children.push(child);
    return child;
  };
  const originOf = ({ ready }: BenchChild): string => `http://127.0.0.1:${ready.port}`;
  const pool = (origin: string): Pool =>
    new Pool(origin, { connections: 64, pipelining: 1, headersTimeout: 0, bodyTimeout: 0 });
  try {
    const engine = await start('engine');
    const proxy = await start('proxy', originOf(engine), directory, option('journal') ?? 'sync');
    const floor = await start('floor', originOf(engine), directory);
    const [direct, through, viaFloor] = [engine, proxy, floor].map((child) => pool(originOf(child))) as [
      Pool,
      Pool,
      Pool,
    ];
    const rig: Rig = { engine, proxy, floor, origin: originOf(proxy), direct, through, throughFloor: viaFloor };
    const isChosen = (name: string): boolean => only === null || only.includes(name);
    const n = (calls: number): number => Math.max(60, Math.round(calls * (isQuick ? 0.1 : 1)));
    const tokensCalls = callsOf(isQuick ? 8 : 64);
    const plans: Readonly<Record<CaseName, readonly [CallKind, Plan]>> = {
      small_c1: [SMALL, { connections: 1, calls: n(2_000), rounds: 7 }],
      small_c64: [SMALL, { connections: 64, calls: n(4_000), rounds: 5, delayMs: PACED_MS }],
      turn_c1: [TURN, { connections: 1, calls: n(400), rounds: 7 }],
      turn_c64: [TURN, { connections: 64, calls: n(1_000), rounds: 7, delayMs: PACED_MS }],
      tokens_c64: [
        TURN,
        { connections: 64, calls: tokensCalls, rounds: isQuick ? 3 : 7, delayMs: PACED_MS, mode: 'tokens' },
      ],
    };
    const cases: Partial<Record<CaseName, Row>> = {};
    for (const [name, [kind, plan]] of Object.entries(plans) as [CaseName, readonly [CallKind, Plan]][]) {
      if (isChosen(name)) cases[name] = await measure(rig, kind, plan);
    }
    const grown = isChosen('growth') ? await growth(rig, n(100_000), n(20_000)) : null;
    const many = isChosen('crowd') ? await crowd(rig, isQuick ? 1 : 3) : null;
    await Promise.all([direct, through, viaFloor].map((each) => each.close()));
    report(cases, grown, many, await measureSync(directory));
  } finally {
    for (const child of children) await child.close();
    await rm(directory, { recursive: true, force: true });
  }
}

type CaseName = (typeof CASE_NAMES)[number];

function rateOf(row: Row | undefined): number | null {
  return row === undefined ? null : Math.round(1e6 / row.cpu_us);
}

function shown(value: number | null | undefined): number | null {
  return value === undefined || value === null ? null : rounded(value, 3);
}

function report(
  cases: Partial<Record<CaseName, Row>>,
  grown: Growth | null,
  many: CrowdResult | null,
  sync: SyncCost,
): void {
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
    small_cpu_over_floor_c1: shown(small?.cpu_over_floor),
    small_cpu_over_floor_c64: shown(smallMany?.cpu_over_floor),
    cpu_over_floor: shown(turns?.cpu_over_floor),
    cpu_over_floor_tokens: shown(tokens?.cpu_over_floor),
    cpu_us_small: small === undefined ? null : Math.round(small.cpu_us),
    timeouts_1024: many?.timeouts ?? null,
    loop_lag_p99_ms: shown(many?.lag.p99),
    loop_lag_idle_p99_ms: shown(many?.idleLag.p99),
    rss_growth_mb: shown(grown?.rssMb),
    heap_growth_mb: shown(grown?.heapMb),
    sync_p50_ms: shown(sync.ms),
    sync_cpu_us: Math.round(sync.cpuUs),
    cases: rows,
  };
  console.table(
    Object.fromEntries(
      Object.entries(rows).map(([name, { connections: _, direct_p50_ms: __, cpu_over_floor, ...row }]) => [
        name,
        { cpu_over_floor, ...row },
      ]),
    ),
  );
  if (grown !== null) {
    const parts = `heap ${rounded(grown.heapMb)}, external ${rounded(grown.externalMb)}`;
    console.log(
      `memory over ${grown.calls} calls: RSS ${rounded(grown.rssMb)} MB of ${rounded(grown.rssTotalMb)} (${parts})`,
    );
  }
  if (many !== null) {
    const { calls, wallS, cpuUs, timeouts, lag, idleLag } = many;
    console.log(
      `${CROWD.sessions} concurrent sessions: ${calls} calls in ${rounded(wallS)} s, ${timeouts} timeouts, 0 errors, ` +
        `${Math.round(cpuUs)} us CPU each; event loop late by p50 ${rounded(lag.p50)} ms, p99 ${rounded(lag.p99)} ms, ` +
        `at most ${rounded(lag.max)} ms (an idle process: p99 ${rounded(idleLag.p99)} ms)`,
    );
  }
  const floorMs = shown(small?.floor_added_p50_ms);
  console.log(
    `small call: +${result.added_p50_ms_c1} ms p50 with 1 connection (the floor +${floorMs} ms, one synced append ${result.sync_p50_ms} ms), ${result.cpu_us_small} us CPU, of which a synced append takes ${result.sync_cpu_us}`,
  );
  console.log(
    `realistic turn: ${result.turns_per_cpu_s} per CPU second in chat mode (${result.cpu_over_floor} times the floor's CPU), ${result.turns_per_cpu_s_tokens} in tokens mode`,
  );
  const { cpu, cores, node, commit } = machine();
  console.log(`${cpu}, ${cores} cores, Node ${node}, commit ${commit}`);
  if (process.argv.includes('--json')) console.log(JSON.stringify({ ...result, cpu, cores, node, commit }));
}

await main();
