// Compares floe's model proxy with the proxies of other projects: CPU time and latency of a model call, with the same engine and client.
//
//   npm run bench -- peers [--quick] [--only=PEER,…] [--json]
//
// Each round calls the engine through the floor (node:http, undici and JSON.parse), floe and every peer in turn. The order alternates, and the
// calls are made with 1 and with 8 connections. A ratio is the median over the rounds of the peer's figure divided by floe's of the same
// round. CPU time covers all processes of a proxy.
//
// For each call, floe does more than any peer: it checks the reply's ids and log-probabilities, and writes and syncs the record to disk before
// it answers.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { messageOf, sleep, systemClock } from '@floe-rl/core';
import { type Dispatcher, Pool } from 'undici';
import { knownNames } from '../../tools/known-names.ts';
import { type BenchChild, startChild } from '../child.ts';
import {
  bodiesOf,
  type CallKind,
  CHAT_PATH,
  type Post,
  round as runRound,
  SMALL,
  send,
  TURN,
} from '../proxy/client.ts';
import { median, type PairedRatio, pairedRatio, percentile, printReport, type ReportRow, round } from '../report.ts';
import { PACKAGES } from './installs.ts';
import { PEERS, type Peer, type PeerName, startPeer } from './peers.ts';
import { treeCpuUs } from './processes.ts';

const isQuick = process.argv.includes('--quick');
const ROUNDS = isQuick ? 3 : 5;
/** Calls per round, proxy and number of connections. Enough for CPU times far above the clock tick in which they are counted. */
const CALLS = isQuick ? { small: 150, turn: 50 } : { small: 400, turn: 120 };
/**
 * Number of calls before the measured rounds. They let V8 compile the code of the proxies that run on Node. Python compiles nothing while it
 * runs.
 */
const WARM_UP_CALLS = {
  node: isQuick ? { small: 500, turn: 150 } : { small: 1_500, turn: 400 },
  python: { small: 100, turn: 20 },
};
const CALLS_PER_SESSION = 50;
const CONNECTIONS = [1, 8] as const;
/** The ratio of CPU time that each peer is expected to reach at least. */
const AIMS: Readonly<Record<PeerName, number>> = { portkey: 1.5, litellm: 8, rllm: 4 };

type CaseName = 'small' | 'turn' | 'turn_plain';
type Case = { readonly kind: CallKind; readonly size: keyof typeof CALLS; readonly peersGetIds: boolean };
/**
 * In the case `turn_plain`, the peers that record nothing get replies without ids, because their users train no model. In all cases, floe and
 * the floor get replies with ids.
 */
const CASES: Readonly<Record<CaseName, Case>> = {
  small: { kind: SMALL, size: 'small', peersGetIds: true },
  turn: { kind: TURN, size: 'turn', peersGetIds: true },
  turn_plain: { kind: TURN, size: 'turn', peersGetIds: false },
};

type Measured = { readonly cpuUs: number; readonly p50Ms: number; readonly p99Ms: number };
type Load = { readonly kind: CallKind; readonly connections: number; readonly calls: number };
/** A proxy that is measured. `needsIds` is whether it records or reads the ids of replies. */
type Contender = {
  readonly name: PeerName | 'floe' | 'floor';
  readonly needsIds: boolean;
  readonly language: keyof typeof WARM_UP_CALLS;
  measure(load: Load): Promise<Measured>;
};

/** Time in ms after which the client closes an idle connection. It is far below the 5 s of uvicorn and of Node's servers. */
const CLIENT_IDLE_MS = 1_000;

type Headers = Readonly<Record<string, string>>;

/**
 * Runs `work` with a client of its own connections. Connections are not kept between measurements, because servers would close them while
 * another proxy is measured.
 */
async function withClient<T>(origin: string, extra: Headers, work: (client: Post) => Promise<T>): Promise<T> {
  const timeouts = { headersTimeout: 0, bodyTimeout: 0, keepAliveTimeout: CLIENT_IDLE_MS };
  const pool = new Pool(origin, { connections: 8, pipelining: 1, ...timeouts });
  const client = pool.compose((dispatch: Dispatcher['dispatch']) => (options, handler) => {
    return dispatch({ ...options, headers: { ...options.headers, ...extra } as Headers }, handler);
  });
  try {
    return await work(client);
  } finally {
    await pool.close();
  }
}

type Target = { readonly origin: string; readonly pid: number; readonly headers: Headers };

const targetOf = ({ ready }: BenchChild): Target => ({ origin: originOf(ready), pid: Number(ready.pid), headers: {} });

function originOf({ port }: BenchChild['ready']): string {
  return `http://127.0.0.1:${port}`;
}

function measure({ origin, pid, headers }: Target, paths: readonly string[], load: Load): Promise<Measured> {
  return withClient(origin, headers, async (client) => {
    const body = bodiesOf(load.kind);
    const before = treeCpuUs(pid);
    const latencies = await runRound(client, paths, body, load);
    const cpuUs = (treeCpuUs(pid) - before) / load.calls;
    return { cpuUs, p50Ms: percentile(latencies, 0.5) ?? 0, p99Ms: percentile(latencies, 0.99) ?? 0 };
  });
}

function floorOf(child: BenchChild): Contender {
  return {
    name: 'floor',
    needsIds: true,
    language: 'node',
    measure: (load) => measure(targetOf(child), [CHAT_PATH], load),
  };
}

function floeOf(child: BenchChild): Contender {
  return {
    name: 'floe',
    needsIds: true,
    language: 'node',
    async measure(load) {
      const opening = { count: Math.ceil(load.calls / CALLS_PER_SESSION), mode: 'chat' };
      const { sessions } = (await child.request('open', opening)) as { sessions: { readonly key: string }[] };
      const paths = sessions.map(({ key }) => `/s/${key}${CHAT_PATH}`);
      const measured = await measure(targetOf(child), paths, load);
      const { completions } = await child.request('closeAll');
      if (completions !== load.calls) throw new Error(`${load.calls} calls, but ${completions} completions of floe`);
      return measured;
    },
  };
}

/** A peer is asked this many times whether it has recorded the first reply, at this interval in milliseconds. */
const RECORD_TRIES = 20;
const RECORD_POLL_MS = 250;

/** Sends a peer one call. Rejects with an Error that states what is wrong with its reply. */
async function checkReply(peer: Peer): Promise<void> {
  const text = await withClient(peer.origin, peer.headers, (client) =>
    send(client, peer.path('probe'), bodiesOf(SMALL)(0)),
  );
  const { choices } = JSON.parse(text) as { choices?: readonly [{ message?: { content?: string } }] };
  if (!choices?.[0].message?.content?.startsWith('word word')) throw new Error(`its reply is ${text.slice(0, 300)}`);
  // A peer may record a reply some time after it has sent it.
  for (let tries = 1; peer.recorded !== null && (await peer.recorded('probe')) !== 1; tries++) {
    if (tries === RECORD_TRIES) throw new Error('it recorded no ids of its reply');
    await sleep(systemClock, RECORD_POLL_MS);
  }
}

function contenderOf(name: PeerName, peer: Peer): Contender {
  let sessions = 0;
  return {
    name,
    needsIds: peer.recorded !== null,
    language: name === 'portkey' ? 'node' : 'python',
    measure(load) {
      const count = Math.ceil(load.calls / CALLS_PER_SESSION);
      const paths = Array.from({ length: count }, () => peer.path(`bench-${++sessions}`));
      return measure(peer, paths, load);
    },
  };
}

/** All figures of one case: by connections and proxy, one entry for each round. */
type CaseFigures = Readonly<Record<number, Readonly<Record<string, Measured[]>>>>;

async function runCase(name: CaseName, engine: BenchChild, contenders: readonly Contender[]): Promise<CaseFigures> {
  const { kind, size, peersGetIds } = CASES[name];
  const chosen = contenders.filter(
    ({ needsIds, name }) => peersGetIds || !needsIds || name === 'floe' || name === 'floor',
  );
  const figures = Object.fromEntries(
    CONNECTIONS.map((connections) => [
      connections,
      Object.fromEntries(chosen.map((each): [string, Measured[]] => [each.name, []])),
    ]),
  );
  const run = async (each: Contender, connections: number, calls: number): Promise<Measured> => {
    await engine.request('ids', { included: peersGetIds || each.needsIds });
    try {
      return await each.measure({ kind, connections, calls });
    } catch (error) {
      throw new Error(`${name}: ${each.name} failed with ${connections} connections: ${error}`, { cause: error });
    }
  };
  for (const each of chosen) await run(each, 8, WARM_UP_CALLS[each.language][size]);
  for (let i = 0; i < ROUNDS; i++) {
    for (const connections of CONNECTIONS) {
      for (const each of i % 2 === 0 ? chosen : chosen.toReversed()) {
        figures[connections]?.[each.name]?.push(await run(each, connections, CALLS[size]));
      }
    }
  }
  return figures;
}

/** Returns the ratios of a proxy's figures to floe's; `null` when the proxy was not measured. */
function ratioOf(figures: CaseFigures, connections: number, name: string, key: keyof Measured): PairedRatio | null {
  const [values = [], base = []] = [name, 'floe'].map((proxy) =>
    figures[connections]?.[proxy]?.map((each) => each[key]),
  );
  return pairedRatio(values, base);
}

const shown = (value: number | undefined): number | null => (value === undefined ? null : round(value));

function keysOf(figures: CaseFigures) {
  const ratios = (connections: number, key: keyof Measured): Record<PeerName, number | null> =>
    Object.fromEntries(PEERS.map((peer) => [peer, shown(ratioOf(figures, connections, peer, key)?.median)])) as Record<
      PeerName,
      number | null
    >;
  const figure = (name: string, connections: number, key: keyof Measured): number =>
    round(median((figures[connections]?.[name] ?? []).map((each) => each[key])) ?? Number.NaN);
  const rows = Object.keys(figures[8] ?? {}).map((name) => [
    name,
    {
      cpu_us: round(figure(name, 8, 'cpuUs'), 0),
      cpu_us_c1: round(figure(name, 1, 'cpuUs'), 0),
      p50_ms_c1: figure(name, 1, 'p50Ms'),
      p99_ms_c1: figure(name, 1, 'p99Ms'),
      p50_ms_c8: figure(name, 8, 'p50Ms'),
      p99_ms_c8: figure(name, 8, 'p99Ms'),
    },
  ]);
  return {
    cpu_ratio: ratios(8, 'cpuUs'),
    cpu_ratio_c1: ratios(1, 'cpuUs'),
    latency_ratio: ratios(1, 'p50Ms'),
    latency_ratio_p99: ratios(1, 'p99Ms'),
    latency_ratio_c8: ratios(8, 'p50Ms'),
    latency_ratio_c8_p99: ratios(8, 'p99Ms'),
    cpu_over_floor: round(1 / (ratioOf(figures, 8, 'floor', 'cpuUs')?.median ?? Number.NaN)),
    proxies: Object.fromEntries(rows) as Record<string, Record<string, number>>,
  };
}

function report(
  cases: Readonly<Record<string, CaseFigures>>,
  missing: Readonly<Partial<Record<PeerName, string>>>,
): void {
  const keys = Object.fromEntries(Object.entries(cases).map(([name, figures]) => [name, keysOf(figures)]));
  const ratioRows = (title: string, connections: number, key: keyof Measured): ReportRow[] =>
    Object.entries(cases).flatMap(([name, figures]) =>
      PEERS.map((peer): ReportRow => {
        const ratio = ratioOf(figures, connections, peer, key);
        if (ratio === null) return [`${name}: ${title}, ${peer} / floe`, '-', missing[peer] ?? 'not measured'];
        const aim = key === 'cpuUs' && name !== 'turn_plain' ? `; aim: ${AIMS[peer]} or more` : '';
        return [
          `${name}: ${title}, ${peer} / floe`,
          round(ratio.median),
          `${round(ratio.least)} to ${round(ratio.greatest)}${aim}`,
        ];
      }),
    );
  const rows: ReportRow[] = [
    ...ratioRows('CPU', 8, 'cpuUs'),
    ...ratioRows('p50 latency, 1 connection', 1, 'p50Ms'),
    ...Object.entries(keys).map(
      ([name, { cpu_over_floor }]): ReportRow => [`${name}: CPU, floe / floor`, cpu_over_floor],
    ),
    ...Object.entries(keys).flatMap(([name, { proxies }]) =>
      Object.entries(proxies).map(([proxy, row]): ReportRow => {
        const latency = (c: number): string => `${row[`p50_ms_c${c}`]} ms (p99 ${row[`p99_ms_c${c}`]})`;
        return [`${name}: ${proxy}`, `${row.cpu_us} us`, `1 connection ${latency(1)}; 8 connections ${latency(8)}`];
      }),
    ),
  ];
  printReport(`Proxies compared with floe's; CPU of a call with 8 connections`, rows, {
    ...keys,
    versions: Object.fromEntries(PEERS.map((peer) => [peer, PACKAGES[peer].version])),
    missing,
  });
}

async function main(): Promise<void> {
  const given = process.argv.find((arg) => arg.startsWith('--only='))?.slice('--only='.length) ?? null;
  const only = knownNames('only', given, PEERS) ?? PEERS;
  const directory = await mkdtemp(join(tmpdir(), 'floe-bench-'));
  const children: BenchChild[] = [];
  const peers: Peer[] = [];
  const contenders: Contender[] = [];
  const start = async (module: string, ...args: readonly string[]): Promise<BenchChild> => {
    const child = await startChild(new URL(`../proxy/${module}`, import.meta.url), args);
    children.push(child);
    return child;
  };
  try {
    const engine = await start('stub-engine-process.js');
    const engineUrl = originOf(engine.ready);
    contenders.push(floorOf(await start('proxy-process.js', 'floor', engineUrl)));
    contenders.push(floeOf(await start('proxy-process.js', 'proxy', engineUrl, directory)));
    const missing: Partial<Record<PeerName, string>> = {};
    for (const peer of PEERS.filter((name) => only.includes(name))) {
      try {
        const started = await startPeer(peer, engineUrl, directory);
        peers.push(started);
        await checkReply(started);
        contenders.push(contenderOf(peer, started));
      } catch (error) {
        missing[peer] = messageOf(error).replaceAll(/\s+/g, ' ');
        console.error(`${peer} cannot run: ${missing[peer]}`);
      }
    }
    const cases: Record<string, CaseFigures> = {};
    for (const name of Object.keys(CASES) as CaseName[]) cases[name] = await runCase(name, engine, contenders);
    report(cases, missing);
  } finally {
    for (const peer of peers) await peer.close();
    for (const child of children) await child.close();
    await rm(directory, { recursive: true, force: true });
  }
}

// The peers are ended at the event `exit`. Without a handler, a signal would end Node without this event.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => process.exit(1));
await main();
