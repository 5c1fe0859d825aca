// Three Slurm nodes and two server replicas on PostgreSQL, of which one node and one replica are killed while sessions run:
//
//   node cluster/run.mjs [--sessions N] [--harness pi|shell] [--json FILE] [--keep]
//
// Starts a Slurm of its own on this machine, and a cluster in it with `floe cluster slurm`: a PostgreSQL, two replicas, three nodes
// that each start a simulated engine beside themselves. Ends with
// "cluster: N sessions, N finished, lost 0, duplicated 0, ledger mismatches 0, killed 1 node 1 replica, took N s".
import { spawn, spawnSync } from 'node:child_process';
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
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { stringify } from 'yaml';
import { fail, ROOT, run, step } from '../../tools/setup.mjs';
import { findPostgres, whyNoPostgres } from '../services/postgres-cluster.mjs';
import { startSlurm, tailOf, whyNoSlurm } from './slurm.mjs';

const { values: options } = parseArgs({
  options: {
    sessions: { type: 'string', default: '500' },
    harness: { type: 'string', default: 'pi' },
    json: { type: 'string' },
    keep: { type: 'boolean', default: false },
  },
});

const FLOE = join(ROOT, 'dist', 'cli', 'main.js');
const NODES = 3;
/** Shares of the sessions that have finished when a node and a replica are killed. */
const KILL_NODE_AT = 0.2;
const KILL_REPLICA_AT = 0.5;
/** A run that takes longer hangs. */
const LIMIT_MS = 45 * 60_000;
const LOOK_AGAIN_MS = 250;

/** The first of so many ports in a row that nobody listens on. */
async function portsInARow(count) {
  for (;;) {
    const base = 20_000 + Math.floor(Math.random() * 10_000);
    const servers = Array.from({ length: count }, () => createServer());
    const taken = await Promise.allSettled(
      servers.map(async (server, index) => {
        server.listen(base + index, '127.0.0.1');
        await once(server, 'listening');
      }),
    );
    for (const server of servers) server.close();
    if (taken.every(({ status }) => status === 'fulfilled')) return base;
  }
}

async function clusterConfig(dir, scenarios) {
  const base = await portsInARow(3 + NODES);
  const floe = [process.execPath, FLOE];
  const ledger = `${dir}/shared/ledger-{node_id}.jsonl`;
  return {
    name: 'demo',
    shared: `${dir}/shared`,
    scratch: `${dir}/scratch`,
    // All hosts of this Slurm are this machine.
    host_name: '127.0.0.1',
    listen: '127.0.0.1',
    floe,
    wait_seconds: 120,
    server: { replicas: 2, port: base, options: ['--log-level', 'warn'], job: { cpus: 1 } },
    database: { kind: 'postgres', port: base + 2, bin: findPostgres(), job: { cpus: 1 } },
    nodes: [
      {
        name: 'agents',
        count: NODES,
        pools: { init: 4, ready: 2, run: 6, postrun: 4 },
        engines: [
          {
            command: [
              ...floe,
              'sim',
              '--port',
              '{port}',
              '--ledger',
              ledger,
              '--delay',
              '2',
              ...scenarioOptions(scenarios),
            ],
            port: base + 3,
          },
        ],
        options: ['--log-level', 'warn', '--upload-root', ROOT],
        // More than half of a node, so that no two share one.
        job: { cpus: 5 },
      },
    ],
  };
}

function scenarioOptions(scenarios) {
  return scenarios.length === 0 ? [] : ['--scenario', ...scenarios];
}

async function floe(env, ...args) {
  const child = spawn(process.execPath, [FLOE, ...args], { env, stdio: ['ignore', 'pipe', 'inherit'] });
  let text = '';
  child.stdout.on('data', (chunk) => {
    text += chunk;
  });
  const [code] = await once(child, 'close');
  if (code !== 0) throw new Error(`floe ${args.join(' ')} ended with ${code}`);
  return text;
}

/** The processes of this machine with all of these among their arguments. */
function pidsOf(...args) {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => {
      try {
        const given = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
        return args.every((arg) => given.includes(arg));
      } catch {
        // It has ended meanwhile.
        return false;
      }
    });
}

/**
 * A job is gone as when its host loses power: floe's process is frozen before anything else dies, so that it can tell nobody, and
 * then every process of the job is killed.
 */
function killJob(env, id, ...args) {
  const pids = pidsOf(FLOE, ...args);
  if (pids.length === 0) throw new Error(`no process ${args.join(' ')} is there to be killed`);
  for (const pid of pids) process.kill(pid, 'SIGSTOP');
  const { status } = spawnSync('scancel', ['--signal=KILL', '--full', id], { env, stdio: 'inherit' });
  if (status !== 0) throw new Error(`scancel ${id} ended with ${status}`);
}

async function untilReady(trainer) {
  const deadline = Date.now() + 180_000;
  for (;;) {
    const { nodes } = await trainer.persist(() => trainer.client.status());
    const { engines } = await trainer.persist(() => trainer.client.engines());
    const usable = engines.filter((engine) => engine.nodes.filter(({ state }) => state === 'ready').length === NODES);
    if (nodes.filter((node) => node.healthy).length === NODES && usable.length === NODES) return;
    if (Date.now() > deadline)
      throw new Error(`${nodes.length} nodes and ${usable.length} engines are ready after 180 s`);
    await sleep(LOOK_AGAIN_MS);
  }
}

async function measure(dir, slurm) {
  const { tasksOf, Trainer } = await import('./sessions.mjs');
  const { requests, scenarios } = await tasksOf(options.harness);
  const config = join(dir, 'cluster.yaml');
  const wanted = await clusterConfig(dir, scenarios);
  const { port } = wanted.server;
  writeFileSync(config, stringify(wanted));
  step('starting PostgreSQL, two replicas and three nodes as jobs');
  const started = JSON.parse(await floe(slurm.env, 'cluster', 'slurm', '--config', config, '--json'));
  const idOf = (name) => started.jobs.find((job) => job.name === name).job_id;
  try {
    await floe(slurm.env, 'cluster', 'wait', started.servers, '--seconds', '120');
    const trainer = new Trainer({ url: started.servers, token: readFileSync(started.token_file, 'utf8').trim() });
    await untilReady(trainer);
    step(`submitting ${options.sessions} sessions`);
    const sessions = Number(options.sessions);
    const begun = Date.now();
    await trainer.submit(requests, sessions);
    const killed = { node: 0, replica: 0 };
    await trainer.collect((count) => {
      if (killed.node === 0 && count >= KILL_NODE_AT * sessions) {
        step(`${count} have finished: killing a node and its engine`);
        killJob(slurm.env, `${idOf('agents')}_2`, 'gateway', 'demo-agents-2');
        killed.node++;
      }
      if (killed.replica === 0 && count >= KILL_REPLICA_AT * sessions) {
        step(`${count} have finished: killing the replica that is asked for results`);
        killJob(slurm.env, `${idOf('server')}_1`, 'server', String(port));
        killed.replica++;
      }
    });
    const seconds = (Date.now() - begun) / 1000;
    const report = {
      sessions,
      ...(await trainer.check(join(dir, 'shared'))),
      killed,
      seconds,
      retries: trainer.retries,
    };
    await trainer.close();
    return report;
  } finally {
    if (options.keep) step(`kept: ${dir}`);
    await floe(slurm.env, 'cluster', 'stop', '--config', config);
  }
}

function showLogs(dir) {
  const logs = join(dir, 'shared', 'demo', 'logs');
  if (!existsSync(logs)) return;
  for (const name of readdirSync(logs)) console.error(`\n--- ${name}\n${tailOf(join(logs, name))}`);
}

for (const reason of [whyNoSlurm(), whyNoPostgres()]) {
  if (reason !== null) {
    console.log(`cluster: skipped, ${reason}`);
    process.exit(0);
  }
}
if (!existsSync(FLOE)) fail('dist/ is missing: npm run build');
if (options.harness === 'pi') run(process.execPath, [FLOE, 'harness', 'install', 'pi']);

const dir = mkdtempSync(join(tmpdir(), 'floe-cluster-'));
// PostgreSQL runs as a user of its own where this is root, and has to get to its data.
chmodSync(dir, 0o755);
mkdirSync(join(dir, 'shared'), { mode: 0o755 });
mkdirSync(join(dir, 'scratch'), { mode: 0o755 });
mkdirSync(join(dir, 'slurm'));
step(`starting Slurm with ${NODES} nodes`);
const slurm = await startSlurm({ dir: join(dir, 'slurm'), count: NODES });
const limit = setTimeout(() => fail(`cluster: not done after ${LIMIT_MS / 60_000} minutes`), LIMIT_MS);
let report;
try {
  report = await measure(dir, slurm);
} catch (error) {
  showLogs(dir);
  throw error;
} finally {
  clearTimeout(limit);
  await slurm.stop();
  if (!options.keep) rmSync(dir, { recursive: true, force: true });
}

for (const { session_id, outcome, error } of report.errors.slice(0, 10)) {
  console.error(`${session_id}: ${outcome}: ${error?.code}: ${error?.message}`);
}
for (const mismatch of report.mismatches.slice(0, 10)) console.error(JSON.stringify(mismatch));
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
if (options.json !== undefined) writeFileSync(options.json, `${JSON.stringify(figures, null, 1)}\n`);
console.log(JSON.stringify(figures));
console.log(
  `cluster: ${figures.sessions} sessions, ${figures.finished} finished, lost ${figures.lost}, duplicated ${figures.duplicated}, ` +
    `ledger mismatches ${figures.ledger_mismatches}, killed ${figures.killed_nodes} node ${figures.killed_replicas} replica, ` +
    `took ${Math.round(figures.seconds)} s`,
);
const whole = figures.finished === figures.sessions && figures.killed_nodes === 1 && figures.killed_replicas === 1;
if (!whole || figures.lost + figures.duplicated + figures.ledger_mismatches > 0) process.exitCode = 1;
