import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Clock, FloeError, MIB } from '@floe-rl/core';
import type { SpawnResult } from '../spawn/spawner.ts';
import { type BoxConnection, type BoxEnd, BoxListener, replyBodyBytes } from './connection.ts';
import type { BoxServerOptions } from './server.ts';

/** Node options of a box server, which keep its heap small, because every sandbox with tools has one. */
export const BOX_NODE_FLAGS = ['--max-semi-space-size=1', '--max-old-space-size=128', '--no-warnings'];
/** Memory in bytes and number of tasks of a box server, in addition to the memory and tasks of the commands that it runs. */
export const BOX_BYTES = 128 * MIB;
export const BOX_TASKS = 32;
/** Maximum time in milliseconds for the end of a box server that was asked to end, before it is killed. */
const END_MS = 3_000;
/** Maximum number of characters of the box server's error output, taken from its end, that an error message quotes. */
const STDERR_CHARS = 500;

/**
 * Returns the argument of a box server. By default it forwards no connections, has one user, allows tools all files, and shares the pid
 * namespace of the gateway.
 */
export function boxServerArgument(options: Pick<BoxServerOptions, 'socketPath'> & Partial<BoxServerOptions>): string {
  const all: BoxServerOptions = { forwards: [], user: null, gatewayPidNamespace: null, toolRoot: null, ...options };
  return JSON.stringify(all);
}

/** A box server that runs for tools, as a command of its sandbox. */
export type ToolServer = {
  readonly connection: BoxConnection;
  /** Ends the box server with all its processes. Resolves when it has ended. May be called twice; never rejects. */
  end(): Promise<void>;
  /** Ends the box server after its connection was lost, and returns how it ended. Never rejects. */
  explainEnd(): Promise<BoxEnd>;
};

export type ToolServerOptions = {
  readonly clock: Clock;
  readonly maxOutputBytes: number;
  /** Path on the host of the socket; default: in a new directory. */
  readonly socketPath?: string;
};

/**
 * Starts a box server as a command. `run` runs the box server until it ends. `socketPath` is the socket on the host that the box server
 * connects to. Rejects with `runtime_failed` when it ends instead of connecting, or with the reason of `signal`. After a rejection the box
 * server has ended.
 */
export async function startToolServer(
  run: (socketPath: string, signal: AbortSignal) => Promise<SpawnResult>,
  { clock, maxOutputBytes, socketPath }: ToolServerOptions,
  signal: AbortSignal,
): Promise<ToolServer> {
  // The paths of Unix sockets are limited to 107 bytes, which the state directory of a gateway can exceed.
  const dir = socketPath === undefined ? await mkdtemp(join(tmpdir(), 'floe-box-')) : null;
  const path = socketPath ?? join(dir ?? '', 's');
  const killing = new AbortController();
  let listener: BoxListener | null = null;
  let ended: Promise<unknown> = Promise.resolve();
  try {
    listener = await BoxListener.open(path, { clock, maxBodyBytes: replyBodyBytes(maxOutputBytes) });
    const running = run(path, killing.signal);
    ended = running.catch(() => {});
    const connection = await listener.accept(failure(running), signal);
    const end = async (): Promise<void> => {
      connection.requestEnd();
      const kill = () => killing.abort(new FloeError('runtime_failed', 'the box server did not end when it was asked'));
      const cancel = clock.schedule(END_MS, kill);
      await ended;
      cancel();
      connection.close();
    };
    const explainEnd = async (): Promise<BoxEnd> => {
      await end();
      return running.then(
        ({ killedBy = null }) => ({ byAgent: true, killedBy }),
        (error: unknown) => ({ byAgent: !isOfHost(error), killedBy: null }),
      );
    };
    return { connection, end, explainEnd };
  } catch (error) {
    killing.abort(error);
    await ended;
    throw error;
  } finally {
    await listener?.close();
    if (dir !== null) await rm(dir, { recursive: true, force: true });
  }
}

/** Whether a command failed because the spawn helper or the sandbox itself ended, and not because the command was killed. */
function isOfHost(error: unknown): boolean {
  return FloeError.is(error) && (error.details.helper === 'died' || error.details.box === 'lost');
}

async function failure(running: Promise<SpawnResult>): Promise<never> {
  const { exitCode, signal, stderr } = await running;
  const why = `${signal ?? `exit code ${exitCode}`}: ${stderr.toString().trim().slice(-STDERR_CHARS)}`;
  throw new FloeError('runtime_failed', `the box server ended while it was starting: ${why}`);
}
