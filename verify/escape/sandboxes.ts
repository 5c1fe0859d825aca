// Runs the probes, and agents that use up resources, in one runtime, and prints the findings as one line of JSON. `main.ts` starts it, as
// root or as another user.
//
//   node sandboxes.js BACKEND PARALLEL
import { randomBytes } from 'node:crypto';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { chmodSync, mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { abortAfter, removeTree, systemClock } from '@floe-rl/core';
import { type RuntimeBackend, runtimeBackendSchema, runtimeSpecSchema } from '@floe-rl/core/schema';
import type { ExecRequest, ExecResult, Runtime } from '@floe-rl/sandbox';
import { makeDebianImage } from '../fixtures/debian-image.ts';
import { neighbourCommand } from '../hostile/attacks/sandbox.ts';
import { PROBE_BROKE, PROBE_END, probe } from '../hostile/perl.ts';
import type { PrivateEngine } from '../services/container-engine.ts';
import { childrenOf, processesWith } from '../services/processes.ts';
import { openRuntime } from '../services/runtime-provider.ts';
import { BOMBS, type Bomb, type BombEnd } from './bombs.ts';
import { PACKAGES } from './image.ts';
import { latencyOf } from './latency.ts';
import { type Probe, probesOf, type Surroundings } from './probes.ts';

const IMAGE = 'floe-escape';
/** Maximum time in milliseconds of the command of one probe. */
const PROBES_MS = 120_000;

export type ProbeFinding = { readonly kind: Probe['kind']; readonly name: string; readonly seen: readonly string[] };
export type BombFinding = {
  readonly name: string;
  /** Number of sandboxes in which the bomb ended in each way. */
  readonly ends: Readonly<Record<string, number>>;
  /** Violations that floe did not prevent, each as a phrase. */
  readonly seen: readonly string[];
  /**
   * 99th percentile of a command's time in the neighbours of the bombs, divided by the same percentile next to busy, well-behaved sandboxes.
   */
  readonly neighbours: number;
};
/** Why a runtime cannot run on this machine. */
export type Skipped = { readonly skipped: string };
export type Findings = {
  readonly probes: readonly ProbeFinding[];
  readonly bombs: readonly BombFinding[];
  /** Processes and files that were left after all sandboxes had been stopped. */
  readonly left: readonly string[];
};

/** Secrets and servers on the host. None of them may be reached from a sandbox. */
type Host = {
  readonly around: Surroundings;
  /** Messages about each request that reached one of the servers. */
  readonly reached: string[];
  close(): Promise<void>;
};

/** Creates the secrets and starts the servers that the probes try to reach. `dir` must be readable for every user. */
async function openHost(dir: string, stateDir: string, engine: PrivateEngine | null): Promise<Host> {
  const secret = `escape-secret-${randomBytes(12).toString('hex')}`;
  const secretDir = join(dir, 'secrets');
  mkdirSync(secretDir);
  chmodSync(secretDir, 0o755);
  writeFileSync(join(secretDir, 'secret'), secret);
  process.env.FLOE_ESCAPE_SECRET = secret;
  const abstractSocket = `floe-escape-${process.pid}`;
  const reached: string[] = [];
  const servers: Server[] = [];
  for (const address of [{ host: '127.0.0.1', port: 0 }, join(secretDir, 'socket'), `\0${abstractSocket}`]) {
    const server = createServer((socket) => {
      reached.push(`a connection to ${JSON.stringify(address)}`);
      socket.destroy();
    });
    server.listen(address);
    await once(server, 'listening');
    servers.push(server);
  }
  const address = servers[0]?.address() ?? null;
  if (address === null || typeof address === 'string') throw new Error('the host has no server');
  const { port } = address;
  const datagrams = createSocket('udp4', (_data, { address, port: from }) => {
    reached.push('a datagram');
    datagrams.send('x', from, address);
  });
  datagrams.bind(port, '127.0.0.1');
  await once(datagrams, 'listening');
  const engineSockets = engine === null ? [] : [engine.socketPath];
  const pids = [process.pid, ...childrenOf(process.pid)];
  return {
    around: { secretDir, secret, stateDir, engineSockets, pids, ports: [port], abstractSocket },
    reached,
    async close() {
      for (const server of servers) server.close();
      datagrams.close();
    },
  };
}

/** Abort reason of a command that reaches its time limit. */
const TIMED_OUT = new Error('the command did not end in time');

/** Runs a command. Rejects with {@link TIMED_OUT} when it does not end in `ms` milliseconds. */
async function execFor(runtime: Runtime, request: ExecRequest, ms: number): Promise<ExecResult> {
  const deadline = abortAfter(systemClock, ms, () => TIMED_OUT);
  try {
    return await runtime.exec(request, deadline.signal);
  } finally {
    deadline.release();
  }
}

/** Runs every probe in a sandbox beside another one. Each probe is a command of its own. */
async function runProbes(start: () => Promise<Runtime>, host: Host): Promise<ProbeFinding[]> {
  const [runtime, other] = [await start(), await start()];
  const stop = new AbortController();
  const left = other.exec({ command: neighbourCommand(host.around.secret) }, stop.signal).catch(() => null);
  const findings: ProbeFinding[] = [];
  try {
    for (const { kind, name, body } of probesOf(host.around)) {
      const before = host.reached.length;
      const request = { command: ['perl', '-e', probe(body)], withProxy: true };
      const { stdout, stderr } = await execFor(runtime, request, PROBES_MS);
      const lines = stdout.split('\n');
      const seen = lines.filter((line) => line.startsWith(PROBE_BROKE)).map((line) => line.slice(PROBE_BROKE.length));
      if (!lines.includes(PROBE_END)) seen.push(`the probe did not end: ${(stderr || stdout).trim().slice(0, 300)}`);
      findings.push({ kind, name, seen: [...seen, ...host.reached.slice(before)] });
    }
    findings.push(await killsAll(runtime, other));
  } finally {
    stop.abort();
    await left;
    await Promise.all([runtime.stop(), other.stop()]);
  }
  return findings;
}

/** Kills every process that a command can see. Another sandbox and this program must survive. */
async function killsAll(runtime: Runtime, other: Runtime): Promise<ProbeFinding> {
  await execFor(runtime, { command: 'kill -KILL -1; sleep 1' }, PROBES_MS).catch(() => null);
  const { exitCode } = await execFor(other, { command: ':' }, PROBES_MS);
  return {
    ...({ kind: 'neighbour', name: 'kill the processes of another sandbox' } as const),
    seen: exitCode === 0 ? [] : [`a command of the other sandbox ended with ${exitCode}`],
  };
}

/** Number of sandboxes whose commands are timed. */
const NEIGHBOURS = 3;
const BOMB_MS = 10_000;
const CONCURRENT_STARTS = 8;
/** Shell command of a well-behaved agent that computes for a while. */
const BUSY = 'i=0; while [ $i -lt 400000 ]; do i=$((i + 1)); done';

/** Runs each bomb in all of these sandboxes at the same time, beside neighbours whose commands are timed. */
async function runBombs(start: () => Promise<Runtime>, parallel: number): Promise<BombFinding[]> {
  const neighbours = await Promise.all(Array.from({ length: NEIGHBOURS }, start));
  const sandboxes = await startMany(start, parallel);
  try {
    const work = sandboxes.map((runtime) => execFor(runtime, { command: BUSY }, BOMB_MS));
    const calmMs = await latencyOf(neighbours, Promise.allSettled(work));
    const findings: BombFinding[] = [];
    for (const bomb of BOMBS) {
      console.error(`▸ ${bomb.name}`);
      const running = Promise.all(sandboxes.map((runtime, index) => explode(runtime, bomb, index, sandboxes, start)));
      const p99Ms = await latencyOf(neighbours, running);
      findings.push({ ...summaryOf(bomb, await running), neighbours: p99Ms / calmMs });
    }
    return findings;
  } finally {
    await Promise.all([...sandboxes, ...neighbours].map((runtime) => runtime.stop()));
  }
}

async function startMany(start: () => Promise<Runtime>, count: number): Promise<Runtime[]> {
  const started: Runtime[] = [];
  let left = count;
  const work = async (): Promise<void> => {
    while (left-- > 0) started.push(await start());
  };
  await Promise.all(Array.from({ length: CONCURRENT_STARTS }, work));
  return started;
}

type Explosion = { readonly end: BombEnd; readonly seen: readonly string[] };

/** Runs a bomb in a sandbox. Replaces the sandbox when it can no longer be used. */
async function explode(
  runtime: Runtime,
  { command, program }: Bomb,
  index: number,
  sandboxes: Runtime[],
  start: () => Promise<Runtime>,
): Promise<Explosion> {
  const env: Record<string, string> = program === undefined ? {} : { PROGRAM: program };
  const end = await execFor(runtime, { command, env }, BOMB_MS).then(
    (result): BombEnd => {
      if (result.killedBy !== null) return result.killedBy;
      if (result.signal !== null) return 'signal';
      return result.exitCode === 0 ? 'exit' : 'error';
    },
    (error: unknown): BombEnd | Error => (error === TIMED_OUT ? 'deadline' : (error as Error)),
  );
  // When the command has ended, no process of it may be left.
  const after = await execFor(runtime, { command: COUNT_PROCESSES }, BOMB_MS).catch(() => null);
  if (after === null) {
    await runtime.stop();
    sandboxes[index] = await start();
    return { end: 'sandbox lost', seen: [] };
  }
  const left = Number(after.stdout.trim());
  const seen = left > MAX_IDLE_PROCESSES ? [`${left} processes are left in the sandbox`] : [];
  if (end instanceof Error) return { end: 'sandbox lost', seen: [...seen, `exec rejected with ${end.message}`] };
  return { end, seen };
}

/**
 * Shell command that counts the processes in a sandbox. Ended processes that wait for the first process of the sandbox to reap them do not
 * count.
 */
const COUNT_PROCESSES =
  'for file in /proc/[0-9]*/stat; do read -r line <"$file" && case $line in *") Z "* | *") X "*) ;; *) echo x ;; esac; done 2>/dev/null | wc -l';
/** Maximum number of processes in a sandbox while one command runs: the command, its shell and pipeline, and floe's own processes. */
const MAX_IDLE_PROCESSES = 8;

function summaryOf(bomb: Bomb, all: readonly Explosion[]): Omit<BombFinding, 'neighbours'> {
  const ends: Record<string, number> = {};
  for (const { end } of all) ends[end] = (ends[end] ?? 0) + 1;
  const wrong = Object.keys(ends).filter((end) => end !== 'sandbox lost' && !bomb.ends.includes(end as BombEnd));
  const seen = new Set(all.flatMap((one) => one.seen));
  return { name: bomb.name, ends, seen: [...seen, ...wrong.map((end) => `ended with ${end}`)] };
}

/** Environment variable that marks the processes of sandboxes, so that they can be found. */
const MARK = 'FLOE_ESCAPE_MARK';

async function main(backend: RuntimeBackend, parallel: number): Promise<Findings | Skipped> {
  const dir = mkdtempSync(join(tmpdir(), 'floe-escape-'));
  chmodSync(dir, 0o755);
  const stateDir = join(dir, 'state');
  const mark = randomBytes(8).toString('hex');
  makeDebianImage(dir, PACKAGES);
  const opened = await openRuntime(backend, stateDir, { name: IMAGE, directory: join(dir, 'root') });
  const { provider, engine, image } = opened;
  try {
    const problem = await provider.probe();
    if (problem !== null) return { skipped: `${problem.problem}: ${problem.remedy}` };
    const spec = runtimeSpecSchema.parse({
      ...{ image, env: { [MARK]: mark } },
      ...{ memory_mb: 96, storage_mb: 32, max_processes: 32, max_file_mb: 16, max_output_mb: 1, cpus: 0.5 },
    });
    const host = await openHost(dir, stateDir, engine);
    let count = 0;
    const proxies: Server[] = [];
    const start = async (): Promise<Runtime> => {
      const name = `e${count++}`;
      const proxy = { socketPath: join(dir, `proxy-${name}`, 'proxy.sock'), tcpOrigin: 'http://127.0.0.1:9' };
      mkdirSync(dirname(proxy.socketPath));
      const server = createServer((socket) => socket.destroy()).listen(proxy.socketPath);
      await once(server, 'listening');
      proxies.push(server);
      return provider.start({ name, spec, proxy, readOnlyMounts: [] }, new AbortController().signal);
    };
    const probes = await runProbes(start, host);
    const bombs = parallel === 0 ? [] : await runBombs(start, parallel);
    await host.close();
    for (const server of proxies) server.close();
    const files = (await readdir(join(stateDir, `${backend}-${process.pid}`))).filter((name) => name !== '.share');
    const processes = processesWith(`${MARK}=${mark}`).map((pid) => `process ${pid} is left`);
    const containers = (await engine?.containerCount()) ?? 0;
    return {
      probes,
      bombs,
      left: [
        ...files.map((name) => `${name} is left`),
        ...processes,
        ...(containers > 0 ? [`${containers} containers are left`] : []),
      ],
    };
  } finally {
    await opened.close();
    await removeTree(dir);
  }
}

const [, , backend, parallel] = process.argv;
console.log(JSON.stringify(await main(runtimeBackendSchema.parse(backend), Number(parallel))));
