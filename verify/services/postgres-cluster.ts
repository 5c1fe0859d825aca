// Starts a private PostgreSQL server for tests and programs, with a separate data directory, port and password. It is removed when the
// process that started it ends.
import { type ChildProcess, type ChildProcessByStdio, spawn, spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import {
  chownSync,
  closeSync,
  existsSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  statfsSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir, userInfo } from 'node:os';
import { delimiter, join } from 'node:path';
import type { Writable } from 'node:stream';
import { GIB, sleep, systemClock } from '@floe-rl/core';
import pg from 'pg';
import { freePort } from './ports.ts';
import { childrenOf } from './processes.ts';

type Watchdog = ChildProcessByStdio<Writable, null, null>;
/** The operating system user that the server runs as. */
type Owner = { readonly uid: number; readonly gid: number };
type Settings = Readonly<Record<string, string | number>>;

/**
 * A private PostgreSQL server. It is stopped and its files are removed when the process that started it ends, even when that process is
 * killed.
 */
export type PostgresCluster = {
  /** URL of the server's first database, with user and password. */
  readonly url: string;
  readonly port: number;
  /** The folder of the server's files. Its file `log` has the server's log. */
  readonly dir: string;
  /** Process id of the server's main process; `null` while the server is down. */
  readonly pid: number | null;
  /** Shuts the server down in order and closes open connections. The data remains. */
  halt(): Promise<void>;
  /** Sends SIGKILL to the server's main process. The server's other processes exit by themselves when the main process has ended. */
  kill(): Promise<void>;
  /** Starts the server after `halt` or `kill`, on the same port. Resolves when it accepts connections. */
  start(): Promise<void>;
  restart(options?: { readonly kill?: boolean }): Promise<void>;
  /** Suspends every process of the server (SIGSTOP). Connections stay open but get no replies. */
  pause(): void;
  resume(): void;
  /** Creates an empty database. Resolves to its URL. */
  createDatabase(): Promise<string>;
  /** Runs SQL as the superuser and returns the rows. It uses the database of `url`, or the first database when `url` is left out. */
  query(text: string, url?: string): Promise<Record<string, unknown>[]>;
  /** Stops the server and removes its files. */
  stop(): Promise<void>;
};

/** The folder in which Debian and Ubuntu install the server's programs, which are not on the PATH. */
const DEBIAN_ROOT = '/usr/lib/postgresql';

/** Linux's file system in memory. */
const MEMORY_DIR = '/dev/shm';
/** Minimum free space in {@link MEMORY_DIR}, in bytes. The tests of the store make 90 databases of 8 MB. */
const MEMORY_BYTES = 2 * GIB;

/** Maximum time in milliseconds until a started server accepts connections. On a busy machine, a start takes seconds. */
const START_TIMEOUT_MS = 60_000;

/** Milliseconds between two checks of a server that is starting or stopping. */
const POLL_INTERVAL_MS = 25;

/** Maximum number of ports that are tried when a server starts. Another process may take a free port before the server listens on it. */
const PORT_TRIES = 5;

/**
 * A detached shell script that kills the server and removes its files when the script's stdin closes. This happens when the process that
 * started the server ends.
 */
const WATCHDOG = `cat > /dev/null
main=$(head -n 1 "$1/data/postmaster.pid" 2> /dev/null)
if [ -n "$main" ]; then
  kill -STOP "$main" 2> /dev/null
  kill -KILL $(cat "/proc/$main/task/$main/children" 2> /dev/null) "$main" 2> /dev/null
fi
rm -rf "$1"`;

function hasMemory(): boolean {
  if (!existsSync(MEMORY_DIR)) return false;
  const { bavail, bsize } = statfsSync(MEMORY_DIR);
  return bavail * bsize >= MEMORY_BYTES;
}

/** Returns the folder with `initdb` and `postgres`; `null` when PostgreSQL's server is not installed. */
export function findPostgres(): string | null {
  const versions = existsSync(DEBIAN_ROOT) ? readdirSync(DEBIAN_ROOT).sort((a, b) => Number(b) - Number(a)) : [];
  const folders = [
    ...(process.env.PATH ?? '').split(delimiter),
    ...versions.map((version) => join(DEBIAN_ROOT, version, 'bin')),
  ];
  return folders.find((folder) => ['initdb', 'postgres'].every((name) => existsSync(join(folder, name)))) ?? null;
}

/** Returns the reason why this machine cannot start a PostgreSQL server; `null` when it can. */
export function whyNoPostgres(): string | null {
  if (findPostgres() === null) return 'initdb and postgres are neither on the PATH nor below /usr/lib/postgresql';
  if (userInfo().uid === 0 && postgresUser() === null)
    return 'PostgreSQL does not run as root, and there is no user postgres';
  return null;
}

/**
 * Starts a PostgreSQL server on a free loopback port, with a password and with PostgreSQL's default of syncing to disk. When this process
 * is root, the server runs as the user `postgres`. `settings` are written to postgresql.conf. With `inMemory` the files are in memory where the
 * machine has room for them, because a database is 300 files. Rejects with an Error when PostgreSQL is not installed or does not start.
 */
export async function startPostgres({
  settings = {},
  inMemory = false,
}: {
  readonly settings?: Settings;
  readonly inMemory?: boolean;
} = {}): Promise<PostgresCluster> {
  const why = whyNoPostgres();
  if (why !== null) throw new Error(why);
  const owner = userInfo().uid === 0 ? postgresUser() : null;
  const dir = mkdtempSync(join(inMemory && hasMemory() ? MEMORY_DIR : tmpdir(), 'floe-pg-'));
  const watchdog = spawn('/bin/sh', ['-c', WATCHDOG, 'sh', dir], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
  });
  // The watchdog must not keep this process alive.
  watchdog.unref();
  if ('unref' in watchdog.stdin && typeof watchdog.stdin.unref === 'function') watchdog.stdin.unref();
  try {
    if (owner !== null) chownSync(dir, owner.uid, owner.gid);
    const cluster = new Cluster(dir, owner, settings, watchdog);
    await cluster.create();
    return cluster;
  } catch (error) {
    watchdog.stdin.end();
    throw error;
  }
}

class Cluster implements PostgresCluster {
  readonly dir: string;
  port = 0;
  private readonly owner: Owner | null;
  private readonly settings: Settings;
  private readonly watchdog: Watchdog;
  private server: ChildProcess | null = null;
  private readonly password = randomBytes(18).toString('base64url');
  private databases = 0;

  constructor(dir: string, owner: Owner | null, settings: Settings, watchdog: Watchdog) {
    this.dir = dir;
    this.owner = owner;
    this.settings = settings;
    this.watchdog = watchdog;
  }

  get url(): string {
    return this.urlOf('floe');
  }

  get pid(): number | null {
    const { server } = this;
    return server === null || server.exitCode !== null || server.signalCode !== null ? null : (server.pid ?? null);
  }

  /** Creates the data directory and starts the server for the first time. */
  async create(): Promise<void> {
    const passwordFile = join(this.dir, 'password');
    writeFileSync(passwordFile, this.password, { mode: 0o600 });
    if (this.owner !== null) chownSync(passwordFile, this.owner.uid, this.owner.gid);
    const initdb = spawnSync(
      join(binaries(), 'initdb'),
      [
        '-D',
        join(this.dir, 'data'),
        '-U',
        'floe',
        '-A',
        'scram-sha-256',
        `--pwfile=${passwordFile}`,
        '-E',
        'UTF8',
        '--locale=C',
        '--no-sync',
      ],
      { cwd: this.dir, encoding: 'utf8', ...(this.owner ?? {}) },
    );
    if (initdb.status !== 0) throw new Error(`initdb failed: ${initdb.stderr}`);
    for (let tries = PORT_TRIES; ; tries--) {
      this.port = await freePort();
      try {
        await this.start();
        break;
      } catch (error) {
        if (tries === 1) throw error;
      }
    }
    await this.run('postgres', 'create database floe');
  }

  async start(): Promise<void> {
    const deadlineMs = systemClock.monotonicMs() + START_TIMEOUT_MS;
    for (;;) {
      this.spawn();
      if (await this.becameReady(deadlineMs)) return;
      // After a kill, processes of the old server may hold its shared memory for a short time; the start is then retried.
      if (systemClock.monotonicMs() > deadlineMs || !this.log().includes('pre-existing shared memory')) {
        throw new Error(`PostgreSQL did not start:\n${this.log()}`);
      }
      await sleep(systemClock, POLL_INTERVAL_MS);
    }
  }

  async halt(): Promise<void> {
    await this.end('SIGINT');
  }

  async kill(): Promise<void> {
    await this.end('SIGKILL');
  }

  async restart({ kill = false }: { readonly kill?: boolean } = {}): Promise<void> {
    await (kill ? this.kill() : this.halt());
    await this.start();
  }

  pause(): void {
    if (this.pid === null) throw new Error('the server does not run');
    // The main process is suspended first, so that it starts no further processes.
    process.kill(this.pid, 'SIGSTOP');
    for (const pid of childrenOf(this.pid)) signal(pid, 'SIGSTOP');
  }

  resume(): void {
    if (this.pid === null) throw new Error('the server does not run');
    for (const pid of childrenOf(this.pid)) signal(pid, 'SIGCONT');
    process.kill(this.pid, 'SIGCONT');
  }

  async createDatabase(): Promise<string> {
    const name = `floe_${++this.databases}`;
    await this.run('postgres', `create database ${name}`);
    return this.urlOf(name);
  }

  async query(text: string, url = this.url): Promise<Record<string, unknown>[]> {
    return this.run(new URL(url).pathname.slice(1), text);
  }

  async stop(): Promise<void> {
    if (this.pid !== null) this.resume();
    // An immediate shutdown is enough: an orderly one would write data to disk that is removed anyway.
    await this.end('SIGQUIT');
    this.watchdog.ref();
    this.watchdog.stdin.end();
    if (this.watchdog.exitCode === null) await once(this.watchdog, 'exit');
    rmSync(this.dir, { recursive: true, force: true });
  }

  private urlOf(database: string): string {
    return `postgres://floe:${this.password}@127.0.0.1:${this.port}/${database}`;
  }

  private spawn(): void {
    const log = openSync(join(this.dir, 'log'), 'w');
    const settings = { ...this.settings, listen_addresses: '127.0.0.1', unix_socket_directories: this.dir };
    const server = spawn(
      join(binaries(), 'postgres'),
      [
        '-D',
        join(this.dir, 'data'),
        '-p',
        String(this.port),
        ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]),
      ],
      { cwd: this.dir, stdio: ['ignore', log, log], ...(this.owner ?? {}) },
    );
    closeSync(log);
    server.unref();
    this.server = server;
  }

  private async becameReady(deadlineMs: number): Promise<boolean> {
    while (this.pid !== null && systemClock.monotonicMs() < deadlineMs) {
      try {
        await this.run('postgres', 'select 1');
        return true;
      } catch {
        await sleep(systemClock, POLL_INTERVAL_MS);
      }
    }
    return false;
  }

  private async end(signal: NodeJS.Signals): Promise<void> {
    const { server } = this;
    if (server === null || this.pid === null) return;
    this.server = null;
    server.ref();
    const ended = once(server, 'exit');
    server.kill(signal);
    await ended;
  }

  private log(): string {
    return readFileSync(join(this.dir, 'log'), 'utf8');
  }

  private async run(database: string, text: string): Promise<Record<string, unknown>[]> {
    const client = new pg.Client({ connectionString: this.urlOf(database), connectionTimeoutMillis: 10_000 });
    // When the server ends while a query runs, the query rejects. The `error` event only repeats that error, so it is ignored.
    client.on('error', () => {});
    await client.connect();
    try {
      return (await client.query(text)).rows;
    } finally {
      await client.end();
    }
  }
}

function binaries(): string {
  const folder = findPostgres();
  if (folder === null) throw new Error('PostgreSQL is not installed');
  return folder;
}

function postgresUser(): Owner | null {
  const entry = readFileSync('/etc/passwd', 'utf8')
    .split('\n')
    .map((line) => line.split(':'))
    .find(([name]) => name === 'postgres');
  return entry === undefined ? null : { uid: Number(entry[2]), gid: Number(entry[3]) };
}

/**
 * Sends a signal to a process of the server. Does nothing when the process has ended, because processes of connections can end at any time.
 */
function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch (error) {
    if (!(error instanceof Error && 'code' in error && error.code === 'ESRCH')) throw error;
  }
}
