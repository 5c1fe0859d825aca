// `npm run verify -- cluster`: runs sessions on a Slurm cluster, kills a node and a server replica during the run, and checks that no session
// is lost or duplicated.
//
//   npm run verify -- cluster [--sessions N] [--harness pi|shell] [--json] [--keep]
//
// Starts a private Slurm on this machine, and a floe cluster in it with `floe cluster slurm`: PostgreSQL, two server replicas, and three
// nodes, each with a simulated engine. The last line of output is
// "cluster: N sessions, N finished, lost 0, duplicated 0, ledger mismatches 0, killed 1 node 1 replica, took N s".

import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseAs, parseJson, sleep, systemClock, systemRandom } from '@floe-rl/core';
import { stringify } from 'yaml';
import { z } from 'zod';
import { repositoryRoot } from '../../tools/repository.ts';
import { FLOE, runFloe } from '../runner/floe.ts';
import { readOptions } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';
import { findPostgres, whyNoPostgres } from '../services/postgres-cluster.ts';
import { type Slurm, startSlurm, tailOf, whyNoSlurm } from './slurm.ts';
import { type CheckReport, ClusterTrainer, tasksOf } from './trainer.ts';

const { options, json } = readOptions({
  sessions: { type: 'string', default: '500' },
  harness: { type: 'string', default: 'pi' },
  keep: { type: 'boolean', default: false },
});

const ROOT = repositoryRoot();
const NODES = 3;
/** A node is killed once this share of all sessions has finished. */
const KILL_NODE_AT = 0.2;
/** A server replica is killed once this share of all sessions has finished. */
const KILL_REPLICA_AT = 0.5;
/** Longest duration of a run. A run that takes longer has stalled and fails. */
const LIMIT_MS = 45 * 60_000;
const READY_TIMEOUT_MS = 180_000;
const POLL_INTERVAL_MS = 250;
/** Maximum number of failed sessions that are printed. The same maximum applies to printed token mismatches. */
const MAX_PRINTED = 10;

const startedSchema = z.object({
  servers: z.string(),
  token_file: z.string(),
  jobs: z.array(z.object({ name: z.string(), job_id: z.string() })),
});

type Report = CheckReport & {
  readonly sessions: number;
  readonly killed: { readonly node: number; readonly replica: number };
  readonly seconds: number;
};

function step(text: string): void {
  console.error(`▸ ${text}`);
}

/** Returns the first of `count` consecutive free ports on the loopback interface. */
async function consecutivePorts(count: number): Promise<number> {
  for (;;) {
    const base = 20_000 + Math.floor(systemRandom() * 10_000);
    const servers = Array.from({ length: count }, (_, index) => createServer().listen(base + index, '127.0.0.1'));
    const results = await Promise.allSettled(servers.map((server) => once(server, 'listening')));
    for (const server of servers) server.close();
    if (results.every(({ status }) => status === 'fulfilled')) return base;
  }
}

function clusterConfig(dir: string, port: number, scenarios: readonly string[]): object {
  const floe = [process.execPath, FLOE];
  const ledger = `${dir}/shared/ledger-{node_id}.jsonl`;
  const scenarioOptions = scenarios.length === 0 ? [] : ['--scenario', ...scenarios];
  return {
    name: 'demo',
    shared: `${dir}/shared`,
    scratch: `${dir}/scratch`,
    // All hosts of this private Slurm are this one machine, so the servers are reached on the loopback interface.
    host_name: '127.0.0.1',
    listen: '127.0.0.1',
    floe,
    wait_seconds: 120,
    server: { replicas: 2, port, options: ['--log-level', 'warn'], job: { cpus: 1 } },
    database: { kind: 'postgres', port: port + 2, bin: findPostgres(), job: { cpus: 1 } },
    nodes: [
      {
        name: 'agents',
        count: NODES,
        pools: { init: 4, ready: 2, run: 6, postrun: 4 },
        engines: [
          {
            command: [...floe, 'sim', '--port', '{port}', '--ledger', ledger, '--delay', '2', ...scenarioOptions],
            port: port + 3,
          },
        ],
        options: ['--log-level', 'warn', '--upload-root', ROOT],
        // Each job takes more than half of a node's CPUs, so that no two jobs run on the same node.
        job: { cpus: 5 },
      },
    ],
  };
}

/** Runs a command of the `floe` program and returns its standard output. Throws an Error when the command fails. */
async function floe(env: NodeJS.ProcessEnv, ...args: readonly string[]): Promise<string> {
  const { code, text, errors } = await runFloe(args, env);
  if (code !== 0) throw new Error(`floe ${args.join(' ')} ended with ${code}: ${errors}`);
  return text;
}

/** Returns the pids of the processes whose command line contains all the given arguments. */
function pidsWith(...args: readonly string[]): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => {
      try {
        const commandLine = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
        return args.every((arg) => commandLine.includes(arg));
      } catch {
        // The process ended before its command line could be read.
        return false;
      }
    });
}

/**
 * Ends a Slurm job as a power failure of its host would. It suspends floe's process in the job first, so that the process can send no last
 * messages, and then kills every process of the job. `args` are arguments that only floe's process in that job has.
 */
function killJob(env: NodeJS.ProcessEnv, id: string, ...args: readonly string[]): void {
  const pids = pidsWith(FLOE, ...args);
  if (pids.length === 0) throw new Error(`no process with ${args.join(' ')} runs`);
  for (const pid of pids) process.kill(pid, 'SIGSTOP');
  const { status } = spawnSync('scancel', ['--signal=KILL', '--full', id], { env, stdio: 'inherit' });
  if (status !== 0) throw new Error(`scancel ${id} ended with ${status}`);
}

/** Resolves when all nodes send heartbeats and every node can use every engine. Throws an Error after `READY_TIMEOUT_MS`. */
async function untilReady(trainer: ClusterTrainer): Promise<void> {
  const deadlineMs = systemClock.monotonicMs() + READY_TIMEOUT_MS;
  for (;;) {
    const { nodes } = await trainer.untilServed((client) => client.status());
    const { engines } = await trainer.untilServed((client) => client.engines());
    const healthy = nodes.filter((node) => node.healthy).length;
    const usable = engines.filter(
      (engine) => engine.nodes.filter(({ state }) => state === 'ready').length === NODES,
    ).length;
    if (healthy === NODES && usable === NODES) return;
    if (systemClock.monotonicMs() > deadlineMs) {
      throw new Error(`only ${healthy} nodes and ${usable} engines are ready after ${READY_TIMEOUT_MS / 1000} s`);
    }
    await sleep(systemClock, POLL_INTERVAL_MS);
  }
}

async function measure(dir: string, slurm: Slurm): Promise<Report> {
  const { requests, scenarios } = await tasksOf(options.harness);
  const config = join(dir, 'cluster.yaml');
  const port = await consecutivePorts(3 + NODES);
  writeFileSync(config, stringify(clusterConfig(dir, port, scenarios)));
  step('starting PostgreSQL, two replicas and three nodes as jobs');
  const output = await floe(slurm.env, 'cluster', 'slurm', '--config', config, '--json');
  const started = parseAs(startedSchema, parseJson(output), 'output of floe cluster slurm');
  const jobId = (name: string): string => {
    const job = started.jobs.find((one) => one.name === name);
    if (job === undefined) throw new Error(`floe cluster slurm started no job ${name}`);
    return job.job_id;
  };
  try {
    await floe(slurm.env, 'cluster', 'wait', started.servers, '--seconds', '120');
    const trainer = new ClusterTrainer(started.servers, readFileSync(started.token_file, 'utf8').trim());
    await untilReady(trainer);
    step(`submitting ${options.sessions} sessions`);
    const sessions = Number(options.sessions);
    const startedMs = systemClock.monotonicMs();
    await trainer.submitAll(requests, sessions);
    const killed = { node: 0, replica: 0 };
    await trainer.collect((count) => {
      if (killed.node === 0 && count >= KILL_NODE_AT * sessions) {
        step(`${count} have finished: killing a node and its engine`);
        killJob(slurm.env, `${jobId('agents')}_2`, 'gateway', 'demo-agents-2');
        killed.node++;
      }
      if (killed.replica === 0 && count >= KILL_REPLICA_AT * sessions) {
        step(`${count} have finished: killing the replica that serves the results`);
        killJob(slurm.env, `${jobId('server')}_1`, 'server', String(port));
        killed.replica++;
      }
    });
    const seconds = (systemClock.monotonicMs() - startedMs) / 1000;
    const checked = await trainer.check(join(dir, 'shared'));
    await trainer.close();
    return { sessions, ...checked, killed, seconds };
  } finally {
    if (options.keep) step(`kept: ${dir}`);
    await floe(slurm.env, 'cluster', 'stop', '--config', config);
  }
}

async function run(): Promise<Report> {
  const dir = mkdtempSync(join(tmpdir(), 'floe-cluster-'));
  // When this program runs as root, PostgreSQL runs as another user, which must be able to enter this directory.
  chmodSync(dir, 0o755);
  mkdirSync(join(dir, 'shared'), { mode: 0o755 });
  mkdirSync(join(dir, 'scratch'), { mode: 0o755 });
  mkdirSync(join(dir, 'slurm'));
  step(`starting Slurm with ${NODES} nodes`);
  const slurm = await startSlurm({ dir: join(dir, 'slurm'), count: NODES });
  const cancelLimit = systemClock.schedule(LIMIT_MS, () => {
    console.error(`cluster: not finished after ${LIMIT_MS / 60_000} minutes`);
    process.exit(1);
  });
  try {
    return await measure(dir, slurm);
  } catch (error) {
    printLogs(dir);
    throw error;
  } finally {
    cancelLimit();
    await slurm.stop();
    if (!options.keep) rmSync(dir, { recursive: true, force: true });
  }
}

function printLogs(dir: string): void {
  const logs = join(dir, 'shared', 'demo', 'logs');
  if (!existsSync(logs)) return;
  for (const name of readdirSync(logs)) console.error(`\n--- ${name}\n${tailOf(join(logs, name))}`);
}

/** Prints the report of the run, and makes the program fail when a check failed. */
function print(report: Report): void {
  for (const { session_id, outcome, error } of report.errors.slice(0, MAX_PRINTED)) {
    console.error(`${session_id}: ${outcome}: ${error?.code}: ${error?.message}`);
  }
  for (const mismatch of report.mismatches.slice(0, MAX_PRINTED)) console.error(JSON.stringify(mismatch));
  const figures = {
    sessions: report.sessions,
    finished: report.finished,
    lost: report.lost,
    duplicated: report.duplicated,
    ledger_mismatches: report.mismatches.length,
    killed_nodes: report.killed.node,
    killed_replicas: report.killed.replica,
    attempts: report.attempts,
    trained_tokens: report.tokens,
    seconds: Number(report.seconds.toFixed(1)),
  };
  const line =
    `cluster: ${figures.sessions} sessions, ${figures.finished} finished, lost ${figures.lost}, duplicated ${figures.duplicated}, ` +
    `ledger mismatches ${figures.ledger_mismatches}, killed ${figures.killed_nodes} node ${figures.killed_replicas} replica, ` +
    `took ${Math.round(figures.seconds)} s`;
  const isComplete =
    figures.finished === figures.sessions && figures.killed_nodes === 1 && figures.killed_replicas === 1;
  const wrong = figures.lost + figures.duplicated + figures.ledger_mismatches;
  conclude({ line, keys: figures, isPassed: isComplete && wrong === 0, json });
}

const missing = whyNoSlurm() ?? whyNoPostgres();
if (missing !== null) {
  console.log(`cluster: skipped, ${missing}`);
} else {
  if (options.harness === 'pi') await floe(process.env, 'harness', 'install', 'pi');
  print(await run());
}
