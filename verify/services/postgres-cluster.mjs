// A private PostgreSQL server for tests and programs: its own data directory, port and password, gone when its owner is.
import { spawn, spawnSync } from 'node:child_process';
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
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir, userInfo } from 'node:os';
import { delimiter, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';

/** Where Debian and Ubuntu keep what is not on the PATH. */
const DEBIAN_ROOT = '/usr/lib/postgresql';

/** A server that is not up by then will not come up. A busy machine takes seconds. */
const START_TIMEOUT_MS = 60_000;

/** Between two looks at a server that is starting or ending. */
const LOOK_AGAIN_MS = 25;

/** Ports are taken by others between the moment one is found free and the server's start; that many tries are enough. */
const PORT_TRIES = 5;

/** Ends the server and removes its files when the process that started it is gone, however it went. Runs on its own. */
const WATCHDOG = `cat > /dev/null
main=$(head -n 1 "$1/data/postmaster.pid" 2> /dev/null)
if [ -n "$main" ]; then
  kill -STOP "$main" 2> /dev/null
  kill -KILL $(cat "/proc/$main/task/$main/children" 2> /dev/null) "$main" 2> /dev/null
fi
rm -rf "$1"`;

/** The folder with `initdb` and `postgres`, or null. */
export function findPostgres() {
  const versions = existsSync(DEBIAN_ROOT) ? readdirSync(DEBIAN_ROOT).sort((a, b) => Number(b) - Number(a)) : [];
  const folders = [
    ...(process.env.PATH ?? '').split(delimiter),
    ...versions.map((version) => join(DEBIAN_ROOT, version, 'bin')),
  ];
  return folders.find((folder) => ['initdb', 'postgres'].every((name) => existsSync(join(folder, name)))) ?? null;
}

/** Why no server can be started here, or null. */
export function whyNoPostgres() {
  if (findPostgres() === null) return 'initdb and postgres are neither on the PATH nor below /usr/lib/postgresql';
  if (userInfo().uid === 0 && postgresUser() === null)
    return 'PostgreSQL does not run as root, and there is no user postgres';
  return null;
}

/** Starts a server with an empty database. See postgres-cluster.d.mts. */
export async function startPostgres({ settings = {} } = {}) {
  const why = whyNoPostgres();
  if (why !== null) throw new Error(why);
  const owner = userInfo().uid === 0 ? postgresUser() : null;
  const dir = mkdtempSync(join(tmpdir(), 'floe-pg-'));
  const watchdog = spawn('/bin/sh', ['-c', WATCHDOG, 'sh', dir], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
  });
  // Neither keeps its owner alive.
  watchdog.unref();
  watchdog.stdin.unref?.();
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

class Cluster {
  #owner;
  #settings;
  #watchdog;
  #server = null;
  #password = randomBytes(18).toString('base64url');
  #databases = 0;

  constructor(dir, owner, settings, watchdog) {
    this.dir = dir;
    this.port = 0;
    this.#owner = owner;
    this.#settings = settings;
    this.#watchdog = watchdog;
  }

  get url() {
    return this.#urlOf('floe');
  }

  get pid() {
    const server = this.#server;
    return server === null || server.exitCode !== null || server.signalCode !== null ? null : server.pid;
  }

  async create() {
    const passwordFile = join(this.dir, 'password');
    writeFileSync(passwordFile, this.#password, { mode: 0o600 });
    if (this.#owner !== null) chownSync(passwordFile, this.#owner.uid, this.#owner.gid);
    const made = spawnSync(
      join(findPostgres(), 'initdb'),
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
      { cwd: this.dir, encoding: 'utf8', ...this.#owner },
    );
    if (made.status !== 0) throw new Error(`initdb failed: ${made.stderr}`);
    for (let tries = PORT_TRIES; ; tries--) {
      this.port = await freePort();
      try {
        await this.start();
        break;
      } catch (error) {
        if (tries === 1) throw error;
      }
    }
    await this.#query('postgres', 'create database floe');
  }

  /** Starts the server after `kill` or `halt`, on the same port, and resolves when it takes connections. */
  async start() {
    const deadline = Date.now() + START_TIMEOUT_MS;
    for (;;) {
      this.#spawn();
      if (await this.#untilReady(deadline)) return;
      // After a kill, the processes of the old server may live a moment longer and hold its memory.
      if (Date.now() > deadline || !this.#log().includes('pre-existing shared memory')) {
        throw new Error(`PostgreSQL did not start:\n${this.#log()}`);
      }
      await sleep(LOOK_AGAIN_MS);
    }
  }

  /** An orderly end that breaks open connections; the data stays. */
  async halt() {
    await this.#end('SIGINT');
  }

  /** kill -9 of the main process; the others end when they notice. */
  async kill() {
    await this.#end('SIGKILL');
  }

  async restart({ kill = false } = {}) {
    await (kill ? this.kill() : this.halt());
    await this.start();
  }

  /** Every process of the server stands still: connections stay open and are not answered. */
  pause() {
    if (this.pid === null) throw new Error('the server does not run');
    // The main process first: it then starts no others.
    process.kill(this.pid, 'SIGSTOP');
    for (const pid of childrenOf(this.pid)) signal(pid, 'SIGSTOP');
  }

  resume() {
    if (this.pid === null) throw new Error('the server does not run');
    for (const pid of childrenOf(this.pid)) signal(pid, 'SIGCONT');
    process.kill(this.pid, 'SIGCONT');
  }

  /** A new, empty database; resolves to its URL. */
  async createDatabase() {
    const name = `floe_${++this.#databases}`;
    await this.#query('postgres', `create database ${name}`);
    return this.#urlOf(name);
  }

  /** Runs SQL as the superuser and returns the rows. */
  async query(text, url = this.url) {
    return this.#query(new URL(url).pathname.slice(1), text);
  }

  /** Ends the server and removes its files. */
  async stop() {
    if (this.pid !== null) this.resume();
    // At once: what an orderly end would write to disk is removed anyway.
    await this.#end('SIGQUIT');
    this.#watchdog.ref();
    this.#watchdog.stdin.end();
    if (this.#watchdog.exitCode === null) await once(this.#watchdog, 'exit');
    rmSync(this.dir, { recursive: true, force: true });
  }

  #urlOf(database) {
    return `postgres://floe:${this.#password}@127.0.0.1:${this.port}/${database}`;
  }

  #spawn() {
    const log = openSync(join(this.dir, 'log'), 'w');
    const settings = { ...this.#settings, listen_addresses: '127.0.0.1', unix_socket_directories: this.dir };
    this.#server = spawn(
      join(findPostgres(), 'postgres'),
      [
        '-D',
        join(this.dir, 'data'),
        '-p',
        String(this.port),
        ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]),
      ],
      { cwd: this.dir, stdio: ['ignore', log, log], ...this.#owner },
    );
    closeSync(log);
    this.#server.unref();
  }

  async #untilReady(deadline) {
    while (this.pid !== null && Date.now() < deadline) {
      try {
        await this.#query('postgres', 'select 1');
        return true;
      } catch {
        await sleep(LOOK_AGAIN_MS);
      }
    }
    return false;
  }

  async #end(signal) {
    if (this.pid === null) return;
    const server = this.#server;
    this.#server = null;
    server.ref();
    const ended = once(server, 'exit');
    server.kill(signal);
    await ended;
  }

  #log() {
    return readFileSync(join(this.dir, 'log'), 'utf8');
  }

  async #query(database, text) {
    const client = new pg.Client({ connectionString: this.#urlOf(database), connectionTimeoutMillis: 10_000 });
    // The server may end under an open connection; the query then fails, which is enough.
    client.on('error', () => {});
    await client.connect();
    try {
      return (await client.query(text)).rows;
    } finally {
      await client.end();
    }
  }
}

function postgresUser() {
  const entry = readFileSync('/etc/passwd', 'utf8')
    .split('\n')
    .map((line) => line.split(':'))
    .find(([name]) => name === 'postgres');
  return entry === undefined ? null : { uid: Number(entry[2]), gid: Number(entry[3]) };
}

function childrenOf(pid) {
  return readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').filter(Boolean).map(Number);
}

/** A process of a connection may end by itself at any time. */
function signal(pid, name) {
  try {
    process.kill(pid, name);
  } catch (error) {
    if (error.code !== 'ESRCH') throw error;
  }
}

async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}
