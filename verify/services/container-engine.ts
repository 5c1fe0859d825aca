// Starts a private container engine for tests and programs, with directories of its own. It is removed when the process that started it
// ends.
import { spawn, spawnSync } from 'node:child_process';
import { closeSync, existsSync, openSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { sleep, systemClock } from '@floe-rl/core';
import { Client, request } from 'undici';

/** Maximum time in milliseconds until a started engine responds. */
const START_TIMEOUT_MS = 60_000;
const POLL_INTERVAL_MS = 50;

/**
 * Shell commands that remove the directory `$dir` of an engine with the mounts below it, which the engine may leave although it has ended.
 * Tries again for ten seconds, because processes that are ending still write files. The engine of a user without root privileges leaves files
 * of other owners, which only root of a user namespace with these owners can remove.
 */
const REMOVE_DIRECTORY = `tries=0
while [ -e "$dir" ] && [ "$tries" -lt 100 ]; do
  grep -oE " $dir/[^ ]+" /proc/self/mounts | sort -r | while read -r mount; do umount -l "$mount"; done
  chmod -R u+rwX "$dir"
  rm -rf "$dir" || unshare --user --map-auto --map-root-user rm -rf "$dir" || sleep 0.1
  tries=$((tries + 1))
done`;

/**
 * Shell script that stops the engine and removes its files when the script's stdin closes. This happens when the process that started the
 * engine ends. Arguments: the engine's directory, the id of its process (which is also the id of its process group), and the command that
 * removes what the engine leaves.
 */
const WATCHDOG = `cat >/dev/null
dir=$1 pid=$2
shift 2
"$@" >/dev/null 2>&1
kill "$pid" 2>/dev/null
tries=0
while kill -0 "$pid" 2>/dev/null && [ "$tries" -lt 200 ]; do sleep 0.1; tries=$((tries + 1)); done
kill -s KILL -- "-$pid" 2>/dev/null
${REMOVE_DIRECTORY}`;

/** How a private container engine is started. */
export type EngineCommand = {
  /** Name of the engine in messages. */
  readonly name: string;
  /** Directory with all files of the engine. It exists, and is removed when the engine has been stopped. */
  readonly dir: string;
  /** Path of the Unix socket on which the engine will serve its API. */
  readonly socketPath: string;
  readonly argv: readonly [string, ...string[]];
  readonly env?: Readonly<Record<string, string>>;
  /** Command that removes the containers of the engine before the engine is stopped. */
  readonly cleanup: readonly [string, ...string[]];
};

/** A private container engine. */
export type PrivateEngine = {
  /** Path of the Unix socket of the engine's API. */
  readonly socketPath: string;
  /** Makes an image of a directory that contains a root file system. */
  importImage(name: string, rootDirectory: string): Promise<void>;
  /** Returns the number of containers, running or not. */
  containerCount(): Promise<number>;
  /** Stops the engine with all its containers, and removes its files. */
  stop(): Promise<void>;
};

/** Returns the first of the programs that is not on the PATH; `null` when all are. */
export function firstMissing(programs: readonly string[]): string | null {
  const isMissing = (program: string): boolean =>
    spawnSync('/bin/sh', ['-c', 'command -v "$1"', 'sh', program]).status !== 0;
  return programs.find(isMissing) ?? null;
}

/** Removes the directory of an engine that has ended, with the mounts below it. Throws an `Error` when it still exists after ten seconds. */
export function removeEngineDirectory(dir: string): void {
  const { stderr } = spawnSync('/bin/sh', ['-c', `dir=$1; ${REMOVE_DIRECTORY}`, 'sh', dir], { encoding: 'utf8' });
  if (existsSync(dir)) throw new Error(`${dir} could not be removed: ${stderr.trim().slice(-500)}`);
}

/** Starts an engine. Rejects with an `Error` that contains the end of its log when it does not respond in time. */
export async function startEngine(command: EngineCommand): Promise<PrivateEngine> {
  const { name, dir, socketPath, cleanup } = command;
  const [program, ...args] = command.argv;
  const logPath = join(dir, 'log');
  const log = openSync(logPath, 'w');
  const env = { ...process.env, ...command.env };
  const engine = spawn(program, args, { stdio: ['ignore', log, log], detached: true, env });
  closeSync(log);
  const ended = new Promise<void>((resolve) => {
    engine.once('exit', () => resolve());
    engine.once('error', () => resolve());
  });
  const watchdog = spawn('/bin/sh', ['-c', WATCHDOG, 'engine-watchdog', dir, String(engine.pid), ...cleanup], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
    env,
  });
  engine.unref();
  watchdog.unref();
  const stop = async (): Promise<void> => {
    watchdog.ref();
    watchdog.stdin.end();
    await new Promise<void>((resolve) => watchdog.once('exit', () => resolve()));
    if (existsSync(dir)) throw new Error(`${name} could not be removed: ${dir} still exists`);
  };
  const client = new Client('http://localhost', { socketPath, headersTimeout: 0, bodyTimeout: 0 });
  const giveUpMs = systemClock.monotonicMs() + START_TIMEOUT_MS;
  for (;;) {
    const isUp = await request('http://localhost/_ping', { dispatcher: client }).then(
      async ({ statusCode, body }) => {
        await body.dump();
        return statusCode === 200;
      },
      () => false,
    );
    if (isUp) break;
    const hasEnded = await Promise.race([
      ended.then(() => true),
      sleep(systemClock, POLL_INTERVAL_MS).then(() => false),
    ]);
    if (hasEnded || systemClock.monotonicMs() > giveUpMs) {
      const end = readFileSync(logPath, 'utf8').slice(-2_000);
      await stop();
      throw new Error(`${name} did not start: ${end}`);
    }
  }
  return {
    socketPath,
    async importImage(name, rootDirectory) {
      const tar = spawn('tar', ['-C', rootDirectory, '-c', '.'], { stdio: ['ignore', 'pipe', 'inherit'] });
      const { statusCode, body } = await request(`http://localhost/images/create?fromSrc=-&repo=${name}&tag=latest`, {
        method: 'POST',
        dispatcher: client,
        body: tar.stdout,
      });
      const text = await body.text();
      if (statusCode !== 200) throw new Error(`the image ${name} could not be imported: ${text}`);
    },
    async containerCount() {
      const { body } = await request('http://localhost/containers/json?all=1', { dispatcher: client });
      return ((await body.json()) as unknown[]).length;
    },
    async stop() {
      await client.destroy();
      await stop();
    },
  };
}
