// The whole service as real processes: simulated engine here, server and gateways as children that can be killed and started again.
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { startSim } from '../dist/sim/server.js';
import { Child, processesWith } from './child.mjs';
import { checkLeaks, checkPromises } from './oracle.mjs';
import { Trainer } from './trainer.mjs';

const SERVER = fileURLToPath(new URL('server-process.mjs', import.meta.url));
const GATEWAY = fileURLToPath(new URL('gateway-process.mjs', import.meta.url));

/** Short, so that a dead node is noticed within a second or two; long beside a scheduling hiccup of a busy machine. */
const LEASE_SECONDS = 2;

export const SERVER_CONFIG = {
  host: '127.0.0.1',
  lease_seconds: LEASE_SECONDS,
  node_timeout_seconds: LEASE_SECONDS,
  sweep_seconds: 0.2,
  retry_backoff_seconds: 0.05,
  retry_backoff_max_seconds: 1,
  callback_backoff_seconds: 0.1,
  callback_backoff_max_seconds: 1,
  shutdown_grace_seconds: 1,
};

/** One model call with curl, which costs a few milliseconds; `turns` of them. */
export function curlAgent(turns = 1, before = '') {
  const body = JSON.stringify({ model: 'policy', messages: [{ role: 'user', content: 'Say something.' }] });
  const call = `curl -sf -m 60 "$OPENAI_BASE_URL/chat/completions" -H "authorization: Bearer $OPENAI_API_KEY" -H 'content-type: application/json' -d '${body}' > /dev/null`;
  return [before, ...Array.from({ length: turns }, () => call)].filter(Boolean).join(' && ');
}

export async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

export class World {
  /**
   * `servers`, `gateways`: how many of each. `postgres`: a cluster of tools/postgres-cluster.mjs; without it SQLite, and one server.
   * `wrap(name, command)` may put something (strace, a namespace) around a child's command line.
   */
  static async start(options = {}) {
    const dir = await mkdtemp(join(tmpdir(), 'floe-faults-'));
    const sim = await startSim({ ledgerLimit: 1_000_000, ...options.sim });
    // A database of its own: what an earlier world left would be read first, and its blobs are gone.
    const database = (await options.postgres?.createDatabase()) ?? null;
    const world = new World(dir, sim, { ...options, database });
    for (let i = 0; i < (options.servers ?? 1); i++) {
      world.ports.push(await freePort());
      await world.startServer(i);
    }
    for (let i = 0; i < (options.gateways ?? 1); i++) await world.startGateway(i);
    return world;
  }

  constructor(dir, sim, options) {
    this.dir = dir;
    this.sim = sim;
    this.options = options;
    this.marker = `FLOE_FAULT_MARK=${dir.split('-').at(-1)}`;
    this.ports = [];
    this.servers = [];
    this.gateways = [];
    this.trainers = [];
    /** How long each restart took until the process was of use again, ms. */
    this.recoveries = [];
  }

  url(i = 0) {
    return `http://127.0.0.1:${this.ports[i]}`;
  }

  trainer(options = {}) {
    const trainer = new Trainer({ url: () => this.url(this.aliveServer()), ...options });
    this.trainers.push(trainer);
    return trainer;
  }

  aliveServer() {
    const alive = this.servers.findIndex((child) => child?.running);
    return Math.max(0, alive);
  }

  serverCommand(i) {
    const config = { ...SERVER_CONFIG, port: this.ports[i], ...this.options.serverConfig };
    const { database } = this.options;
    const argument = {
      dir: join(this.options.storageDir ?? this.dir, 'server'),
      database,
      blobs: join(this.options.storageDir ?? this.dir, 'blobs'),
      config,
    };
    return [process.execPath, '--expose-gc', SERVER, JSON.stringify(argument)];
  }

  gatewayConfig(i) {
    return {
      node_id: `node-${i}`,
      server_url: this.url(i % this.ports.length),
      state_dir: join(this.dir, `gateway-${i}`),
      harness_dir: join(this.dir, 'harnesses'),
      pools: { init: 4, ready: 4, run: 8, postrun: 4 },
      engines: [{ base_url: this.sim.url }],
      default_backend: 'local',
      heartbeat_seconds: 0.5,
      lease_wait_seconds: 2,
      ...this.options.gatewayConfig?.(i),
    };
  }

  gatewayCommand(i) {
    return [process.execPath, '--expose-gc', GATEWAY, JSON.stringify(this.gatewayConfig(i))];
  }

  stateDirs() {
    return this.gateways.map((_, i) => join(this.dir, `gateway-${i}`));
  }

  /** Starts a server (again) and waits until it answers; null when it died before that. */
  async startServer(i, wrap = this.options.wrap) {
    return this.start('server', this.servers, i, this.serverCommand(i), wrap);
  }

  async startGateway(i, wrap = this.options.wrap) {
    return this.start('gateway', this.gateways, i, this.gatewayCommand(i), wrap);
  }

  async start(kind, list, i, command, wrap) {
    const startedMs = performance.now();
    const wrapped = wrap?.(`${kind}-${i}`, command) ?? command;
    const child = Child.start(wrapped, { env: { FLOE_HOME: join(this.dir, 'home'), ...this.options.env } });
    list[i] = child;
    const undisturbed = () => wrapped === command && this.servers.every((server) => server?.running);
    const calm = undisturbed();
    const said = await child.ready();
    // Killed again before it was of use: whoever did that starts it again.
    if (said === null && wrapped === command && child.process.signalCode !== 'SIGKILL') {
      throw new Error(`${kind} ${i} did not start: ${child.errors}`);
    }
    // A gateway that comes up while a server is down waits for that one, too.
    if (said !== null && calm && undisturbed()) this.recoveries.push(performance.now() - startedMs);
    return said === null ? null : child;
  }

  task(fields = {}) {
    const { agent, ...rest } = fields;
    return {
      instruction: 'Say something.',
      timeout_seconds: 60,
      max_attempts: 10,
      agent: {
        harness: 'shell',
        custom_shell: curlAgent(1),
        env: { FLOE_FAULT_MARK: this.marker.split('=')[1] },
        ...agent,
      },
      evaluator: { strategy: 'session_completed' },
      ...rest,
    };
  }

  /** Pids of agents and whatever else sessions have started. */
  agents() {
    return processesWith(this.marker);
  }

  /** All that the engines sampled. */
  entries() {
    return [this.sim.ledger, ...(this.extraLedgers ?? [])].flatMap((ledger) => ledger.entries());
  }

  /** Everything that was promised, against everything there is. */
  async verdict({ leaks = true } = {}) {
    const parts = this.trainers.map((trainer) => checkPromises(trainer, this.entries(), this.options));
    const leaked = leaks ? await checkLeaks(this.marker, this.stateDirs()) : [];
    const all = (name) => parts.flatMap((part) => part[name]);
    return {
      lost: all('lost'),
      duplicated: all('duplicated'),
      wrong: all('wrong'),
      leaked,
      tokens: parts.reduce((sum, part) => sum + part.tokens, 0),
      slowestRecoveryMs: Math.max(0, ...this.recoveries),
    };
  }

  async close() {
    await Promise.all(this.trainers.map((trainer) => trainer.close()));
    await Promise.all(this.gateways.map((child) => child?.stop()));
    await Promise.all(this.servers.map((child) => child?.stop()));
    await this.sim.close();
    // A last agent may still be writing below a state directory that is being removed.
    for (let tries = 0; tries < 5; tries++) {
      try {
        await rm(this.dir, { recursive: true, force: true });
        return;
      } catch {
        await sleep(200);
      }
    }
  }
}

/** Sentences of a verdict, for people; empty: all well. */
export function complaints(verdict) {
  return ['lost', 'duplicated', 'leaked', 'wrong'].flatMap((kind) => verdict[kind].map((text) => `${kind}: ${text}`));
}
