// Measures the turns per second and the CPU time per turn of a node with one process and with two. Both run in turns, so that changes of the
// machine's speed affect them alike. A turn is a model call in the middle of a coding session.
//
//   npm run bench -- gateway [--quick] [--json]
//
// The processes of the node, a stub of the engine and the client, which is the bench itself, share the machine's cores. With two cores they
// compete, so two processes cannot double the rate. The report therefore states the rate that the measured CPU times allow.
import { execFileSync } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeClient } from '@floe-rl/client';
import { sleep, systemClock } from '@floe-rl/core';
import type { GatewayConfigInput } from '@floe-rl/node';
import { Pool } from 'undici';
import { childrenByParent, processTree, readProcessTable } from '#sandbox/processes/process-table';
import { type BenchChild, cpuUs, startChild } from '../child.ts';
import { bodiesOf, round as callRound, TURN } from '../proxy/client.ts';
import { median, printReport, round } from '../report.ts';

const isQuick = process.argv.includes('--quick');
const ROUNDS = isQuick ? 1 : 3;
const TURNS = isQuick ? 400 : 1_500;
const WARM_UP_TURNS = 300;
const SESSIONS = 16;
const CONNECTIONS = 32;

/** CPU time in milliseconds: of the node's processes, of the engine, and of the client. */
type CpuMs = { readonly node: number; readonly engine: number; readonly client: number };
type Run = { readonly turnsPerSecond: number; readonly cpuMs: CpuMs };

const TICK_MS = 1_000 / Number(execFileSync('getconf', ['CLK_TCK'], { encoding: 'utf8' }));

async function cpuMs(): Promise<CpuMs> {
  let [node, engine] = [0, 0];
  const table = readProcessTable();
  for (const { pid } of processTree(process.pid, table, childrenByParent(table))) {
    const command = await readFile(`/proc/${pid}/cmdline`, 'latin1').catch(() => '');
    const stat = await readFile(`/proc/${pid}/stat`, 'latin1').catch(() => '');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    const ms = (Number(fields[11]) + Number(fields[12])) * TICK_MS;
    if (command.includes('stub-engine-process.js')) engine += ms;
    if (command.includes('stack-process.js') || command.includes('processes/worker.js')) node += ms;
  }
  return { node, engine, client: cpuUs() / 1_000 };
}

/** Starts sessions that write the URL of their proxy into a file of `dir` and then wait. Resolves with the URLs. */
async function openSessions(client: FloeClient, dir: string): Promise<URL[]> {
  execFileSync('mkfifo', [join(dir, 'gate')]);
  const script = `echo "$OPENAI_BASE_URL" > $(mktemp ${dir}/url-XXXXXXXX); read _ < ${dir}/gate`;
  await client.submit({
    instruction: '',
    num_samples: SESSIONS,
    agent: { harness: 'shell', custom_shell: script },
    engine: { mode: 'chat' },
    evaluator: { strategy: 'session_completed' },
  });
  for (;;) {
    const files = (await readdir(dir)).filter((name) => name.startsWith('url-'));
    const texts = await Promise.all(files.map((name) => readFile(join(dir, name), 'utf8')));
    const urls = texts.filter((text) => text.endsWith('\n')).map((text) => new URL(text.trim()));
    if (urls.length === SESSIONS) return urls;
    await sleep(systemClock, 50);
  }
}

/** Makes `count` calls, divided evenly among the proxies. */
async function makeCalls(urls: readonly URL[], count: number): Promise<void> {
  const origins = [...new Set(urls.map(({ origin }) => origin))];
  await Promise.all(
    origins.map(async (origin) => {
      const paths = urls.filter((url) => url.origin === origin).map(({ pathname }) => `${pathname}/chat/completions`);
      const connections = CONNECTIONS / origins.length;
      const pool = new Pool(origin, { connections });
      await callRound(pool, paths, bodyAt, { connections, calls: count / origins.length });
      await pool.close();
    }),
  );
}

const bodyOf = bodiesOf(TURN);
let nonce = 0;
const bodyAt = (): string => bodyOf(nonce++);

async function measure(engine: BenchChild, processes: number): Promise<Run> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-bench-gateway-'));
  const options: Partial<GatewayConfigInput> = {
    harness_dir: dir,
    engines: [{ base_url: `http://127.0.0.1:${engine.ready.port}` }],
    default_backend: 'local',
    pools: { init: SESSIONS, ready: SESSIONS, run: SESSIONS, postrun: SESSIONS },
    memory_mb: null,
    processes,
  };
  const stack = await startChild(new URL('../sessions/stack-process.js', import.meta.url), [JSON.stringify(options)]);
  const client = new FloeClient({ url: String(stack.ready.url) });
  try {
    const urls = await openSessions(client, dir);
    await makeCalls(urls, WARM_UP_TURNS);
    const before = await cpuMs();
    const startMs = systemClock.monotonicMs();
    await makeCalls(urls, TURNS);
    const seconds = (systemClock.monotonicMs() - startMs) / 1_000;
    const after = await cpuMs();
    const each = (key: keyof CpuMs): number => (after[key] - before[key]) / TURNS;
    return {
      turnsPerSecond: TURNS / seconds,
      cpuMs: { node: each('node'), engine: each('engine'), client: each('client') },
    };
  } finally {
    await client.close();
    await stack.close();
    await rm(dir, { recursive: true, force: true });
  }
}

/**
 * Returns the highest rate that the CPU times per turn allow: no process uses more than one core, and all together no more than the machine
 * has.
 */
function boundOf({ node, engine, client }: CpuMs, processes: number): number {
  return 1_000 / Math.max(node / processes, engine, client, (node + engine + client) / cpus().length);
}

const engine = await startChild(new URL('../proxy/stub-engine-process.js', import.meta.url), []);
const runs = { 1: [] as Run[], 2: [] as Run[] };
for (let i = 0; i < ROUNDS; i++) {
  for (const processes of [1, 2] as const) {
    runs[processes].push(await measure(engine, processes));
    console.error(`  round ${i + 1} of ${ROUNDS}, processes: ${processes}`);
  }
}
await engine.close();

const middle = (values: readonly number[]): number => median(values) ?? 0;
const rateOf = (processes: 1 | 2): number[] => runs[processes].map(({ turnsPerSecond }) => turnsPerSecond);
const cpuOf = (processes: 1 | 2): CpuMs => {
  const of = (key: keyof CpuMs): number => middle(runs[processes].map(({ cpuMs: used }) => used[key]));
  return { node: of('node'), engine: of('engine'), client: of('client') };
};
const ratios = rateOf(2).map((rate, i) => rate / (rateOf(1)[i] ?? rate));
const [cpu1, cpu2] = [cpuOf(1), cpuOf(2)];
const bounds = { 1: boundOf(cpu1, 1), 2: boundOf(cpu2, 2) };
const range = (values: readonly number[], digits: number): string =>
  `${round(Math.min(...values), digits)} to ${round(Math.max(...values), digits)}`;
const shares = (used: CpuMs): string => `engine ${round(used.engine, 2)}, client ${round(used.client, 2)}`;
/** Returns the number of cores that all processes of the bench used. It is less than they could use while other programs run. */
const coresOf = (processes: 1 | 2): number =>
  middle(
    runs[processes].map(({ turnsPerSecond, cpuMs: { node, engine: stub, client } }) => {
      return (turnsPerSecond * (node + stub + client)) / 1_000;
    }),
  );

printReport(
  `gateway: ${TURNS} turns of ${SESSIONS} sessions over ${CONNECTIONS} connections, ${ROUNDS} rounds`,
  [
    ['turns per second, 1 process', round(middle(rateOf(1)), 0), range(rateOf(1), 0)],
    ['turns per second, 2 processes', round(middle(rateOf(2)), 0), range(rateOf(2), 0)],
    ['  ratio', round(middle(ratios), 2), `${range(ratios, 2)}; CPU times allow ${round(bounds[2] / bounds[1], 2)}`],
    ['CPU ms per turn, 1 process', round(cpu1.node, 2), shares(cpu1)],
    ['CPU ms per turn, 2 processes', round(cpu2.node, 2), shares(cpu2)],
    ['cores used, 1 process', round(coresOf(1), 2), `of ${cpus().length}; also by engine and client`],
    ['cores used, 2 processes', round(coresOf(2), 2), `of ${cpus().length}; also by engine and client`],
  ],
  {
    turns_per_s_1: round(middle(rateOf(1)), 0),
    turns_per_s_2: round(middle(rateOf(2)), 0),
    ratio: round(middle(ratios), 2),
    ratio_worst: round(Math.min(...ratios), 2),
    ratio_allowed: round(bounds[2] / bounds[1], 2),
    cores_used_1: round(coresOf(1), 2),
    cores_used_2: round(coresOf(2), 2),
    node_cpu_ms_1: round(cpu1.node, 2),
    node_cpu_ms_2: round(cpu2.node, 2),
    engine_cpu_ms: round(cpu1.engine, 2),
    client_cpu_ms: round(cpu1.client, 2),
  },
);
