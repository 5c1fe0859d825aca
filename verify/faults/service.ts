import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { sleep, systemClock } from '@floe-rl/core';
import type { TaskRequestInput } from '@floe-rl/core/schema';
import type { GatewayConfigInput } from '@floe-rl/node';
import type { RolloutConfigInput } from '@floe-rl/server';
import { type Ledger, type LedgerCheckOptions, type SimOptions, type SimServer, startSim } from '@floe-rl/sim';
import { Child } from '../runner/child.ts';
import { freePort } from '../services/ports.ts';
import type { PostgresCluster } from '../services/postgres-cluster.ts';
import { processesWith } from '../services/processes.ts';
import { checkLeaks, checkPromises, type Findings } from './checks.ts';
import { checkLists } from './lists.ts';
import { Trainer } from './trainer.ts';

const SERVER = fileURLToPath(new URL('./server-process.js', import.meta.url));
const GATEWAY = fileURLToPath(new URL('./gateway-process.js', import.meta.url));

/**
 * Lease duration in seconds. It is short, so that the server detects the end of a node within about two seconds. It is still long compared
 * with the scheduling delays of a busy machine.
 */
const LEASE_SECONDS = 2;
/**
 * Maximum number of entries that the simulated engine keeps in its ledger (its own record of sampled tokens). It is larger than the number
 * of replies in any run, so that every reply can be checked.
 */
export const LEDGER_LIMIT = 1_000_000;
/** Maximum number of attempts to remove the service's directory. An attempt fails while the last process of an agent still writes to it. */
const REMOVAL_TRIES = 5;
const REMOVAL_PAUSE_MS = 200;

const SERVER_CONFIG: RolloutConfigInput = {
  host: '127.0.0.1',
  lease_seconds: LEASE_SECONDS,
  // Nodes are killed again and again, and with them the nodes of sessions that are not to blame.
  max_node_losses: 10,
  node_timeout_seconds: LEASE_SECONDS,
  sweep_seconds: 0.2,
  retry_backoff_seconds: 0.05,
  retry_backoff_max_seconds: 1,
  callback_backoff_seconds: 0.1,
  callback_backoff_max_seconds: 1,
  shutdown_grace_seconds: 1,
};

export type ProcessKind = 'server' | 'gateway';

/** Function that returns the command line to run instead of `command`, for example `command` under strace. */
export type Wrap = (command: readonly string[]) => readonly string[];

export type ServiceOptions = {
  /** Number of gateway processes. The default is 1. */
  readonly gateways?: number;
  /** Number of rollout server processes. The default is 1. It must be 1 with SQLite. */
  readonly servers?: number;
  /** The PostgreSQL server that stores the database; `null` or absent for SQLite. */
  readonly postgres?: PostgresCluster | null;
  readonly sim?: SimOptions;
  /** Whether the simulated engine is also in the pool `judge` of the gateways. The default is false. */
  readonly judge?: boolean;
  /** Settings that override the configuration of the servers. */
  readonly serverConfig?: Partial<RolloutConfigInput>;
  /** Returns settings that override the configuration of the gateway with the given index. */
  readonly gatewayConfig?: (index: number) => Partial<GatewayConfigInput>;
  /** Folder for the database and the blobs. The default is the service's own temporary folder. */
  readonly storageDir?: string;
  /** Environment variables that all server and gateway processes get. */
  readonly env?: Readonly<Record<string, string>>;
} & LedgerCheckOptions;

/** The guarantees that a service violated toward any of its trainers, and the duration of its slowest restart. */
export type Verdict = Findings & {
  /** Longest time in ms that a server or gateway took from its start until it accepted requests. */
  readonly slowestRecoveryMs: number;
};

export class Service {
  readonly dir: string;
  readonly sim: SimServer;
  /** Ledgers of further simulated engines. The checks read them in addition to the ledger of `sim`. */
  readonly extraLedgers: Ledger[] = [];
  readonly servers: Child[] = [];
  readonly gateways: Child[] = [];
  /**
   * Value of the environment variable `FLOE_FAULT_MARK` of all agents of this service. The processes of agents are found by this variable.
   */
  readonly mark: string;
  private readonly options: ServiceOptions;
  private readonly database: string | null;
  private readonly ports: number[] = [];
  private readonly trainers: Trainer[] = [];
  private readonly recoveriesMs: number[] = [];

  static async start(options: ServiceOptions = {}): Promise<Service> {
    const dir = await mkdtemp(join(tmpdir(), 'floe-faults-'));
    const sim = await startSim({ ledgerLimit: LEDGER_LIMIT, ...options.sim });
    // Each service gets a new PostgreSQL database, because the rows of an earlier service refer to blobs that were removed.
    const database = (await options.postgres?.createDatabase()) ?? null;
    const service = new Service(dir, sim, options, database);
    for (let i = 0; i < (options.servers ?? 1); i++) {
      service.ports.push(await freePort());
      await service.startServer(i);
    }
    for (let i = 0; i < (options.gateways ?? 1); i++) await service.startGateway(i);
    return service;
  }

  private constructor(dir: string, sim: SimServer, options: ServiceOptions, database: string | null) {
    this.dir = dir;
    this.sim = sim;
    this.options = options;
    this.database = database;
    this.mark = dir.split('-').at(-1) ?? dir;
  }

  /** The environment variable of all agents of this service, as NAME=VALUE. */
  get marker(): string {
    return `FLOE_FAULT_MARK=${this.mark}`;
  }

  port(index = 0): number {
    const port = this.ports[index];
    if (port === undefined) throw new Error(`there is no server ${index}`);
    return port;
  }

  url(index = 0): string {
    return `http://127.0.0.1:${this.port(index)}`;
  }

  simPort(): number {
    return Number(new URL(this.sim.url).port);
  }

  child(kind: ProcessKind, index: number): Child {
    const child = (kind === 'server' ? this.servers : this.gateways)[index];
    if (child === undefined) throw new Error(`there is no ${kind} ${index}`);
    return child;
  }

  trainer(): Trainer {
    const trainer = new Trainer(() =>
      this.url(
        Math.max(
          0,
          this.servers.findIndex((child) => child.isRunning),
        ),
      ),
    );
    this.trainers.push(trainer);
    return trainer;
  }

  /** Starts or restarts a process and waits until it accepts requests. Resolves to `null` when the process was killed during startup. */
  start(kind: ProcessKind, index: number, wrap?: Wrap): Promise<Child | null> {
    return kind === 'server' ? this.startServer(index, wrap) : this.startGateway(index, wrap);
  }

  startServer(index: number, wrap?: Wrap): Promise<Child | null> {
    const folder = this.options.storageDir ?? this.dir;
    const argument = {
      dir: join(folder, 'server'),
      database: this.database,
      blobs: join(folder, 'blobs'),
      config: { ...SERVER_CONFIG, ...this.options.serverConfig, port: this.port(index) },
    };
    return this.launch('server', index, [SERVER, JSON.stringify(argument)], wrap);
  }

  startGateway(index: number, wrap?: Wrap): Promise<Child | null> {
    return this.launch('gateway', index, [GATEWAY, JSON.stringify(this.gatewayConfig(index))], wrap);
  }

  task({ agent, ...fields }: Partial<TaskRequestInput> = {}): TaskRequestInput {
    return {
      instruction: 'Say something.',
      timeout_seconds: 60,
      max_attempts: 10,
      agent: { harness: 'shell', custom_shell: curlAgent(1), env: { FLOE_FAULT_MARK: this.mark }, ...agent },
      evaluator: { strategy: 'session_completed' },
      ...fields,
    };
  }

  /** Returns the pids of all processes that sessions of this service started. */
  agents(): number[] {
    return processesWith(this.marker);
  }

  stateDirs(): string[] {
    return this.gateways.map((_, index) => join(this.dir, `gateway-${index}`));
  }

  /** Checks all guarantees that the service gave to its trainers, and returns the violations. */
  async verdict(): Promise<Verdict> {
    const entries = [this.sim.ledger, ...this.extraLedgers].flatMap((ledger) => ledger.entries());
    const parts = this.trainers.map((trainer) => checkPromises(trainer, entries, this.options));
    return {
      lost: parts.flatMap((part) => part.lost),
      duplicated: parts.flatMap((part) => part.duplicated),
      wrong: parts.flatMap((part) => part.wrong),
      leaked: await checkLeaks(this.marker, this.stateDirs()),
      slowestRecoveryMs: Math.max(0, ...this.recoveriesMs),
    };
  }

  /**
   * Compares what the servers list and sum up about ended sessions with the results that the service's only trainer has read. Returns the
   * differences. Call it while a server runs, after all sessions have ended, and only when no results are removed by retention.
   */
  async checkLists(): Promise<string[]> {
    const [trainer] = this.trainers;
    if (trainer === undefined || this.trainers.length > 1) throw new Error('the service has not exactly one trainer');
    return trainer.untilServed((client) => checkLists(client, trainer.results));
  }

  async close(): Promise<void> {
    await Promise.all(this.trainers.map((trainer) => trainer.close()));
    await Promise.all(this.gateways.map((child) => child.stop()));
    await Promise.all(this.servers.map((child) => child.stop()));
    await this.sim.close();
    for (let tries = 0; tries < REMOVAL_TRIES; tries++) {
      try {
        await rm(this.dir, { recursive: true, force: true });
        return;
      } catch {
        await sleep(systemClock, REMOVAL_PAUSE_MS);
      }
    }
  }

  private gatewayConfig(index: number): GatewayConfigInput {
    return {
      node_id: `node-${index}`,
      server_url: this.url(index % this.ports.length),
      state_dir: join(this.dir, `gateway-${index}`),
      harness_dir: join(this.dir, 'harnesses'),
      pools: { init: 4, ready: 4, run: 8, postrun: 4 },
      engines: [
        { base_url: this.sim.url },
        ...(this.options.judge ? [{ engine_id: 'judge', base_url: this.sim.url, pool: 'judge' }] : []),
      ],
      default_backend: 'local',
      heartbeat_seconds: 0.5,
      lease_wait_seconds: 2,
      ...this.options.gatewayConfig?.(index),
    };
  }

  private async launch(kind: ProcessKind, index: number, args: readonly string[], wrap?: Wrap): Promise<Child | null> {
    const startedMs = systemClock.monotonicMs();
    const command = [process.execPath, '--expose-gc', ...args];
    const child = new Child(wrap?.(command) ?? command, {
      env: { FLOE_HOME: join(this.dir, 'home'), ...this.options.env },
    });
    (kind === 'server' ? this.servers : this.gateways)[index] = child;
    const isUndisturbed = (): boolean => wrap === undefined && this.servers.every((server) => server.isRunning);
    const wasUndisturbed = isUndisturbed();
    const isReady = await child.becameReady();
    if (!isReady && wrap === undefined && !child.wasKilled) {
      throw new Error(`${kind} ${index} did not start: ${child.errors}`);
    }
    // Measures the startup only when all servers were running throughout, because a starting gateway waits for a server that is down.
    if (isReady && wasUndisturbed && isUndisturbed()) this.recoveriesMs.push(systemClock.monotonicMs() - startedMs);
    // A process that was killed during startup is not restarted here: the code that killed it also restarts it.
    return isReady ? child : null;
  }
}

/**
 * Returns the shell command of an agent that first runs the command `before` and then makes `turns` model calls with curl. Each call costs
 * a few milliseconds.
 */
export function curlAgent(turns = 1, before = ''): string {
  const body = JSON.stringify({ model: 'policy', messages: [{ role: 'user', content: 'Say something.' }] });
  const call = `curl -sf -m 60 "$OPENAI_BASE_URL/chat/completions" -H "authorization: Bearer $OPENAI_API_KEY" -H 'content-type: application/json' -d '${body}' > /dev/null`;
  return [before, ...Array.from({ length: turns }, () => call)].filter(Boolean).join(' && ');
}
