// Child processes of a bench. They receive requests over the IPC channel and can process several requests concurrently.
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { Channel, processPort, systemClock } from '@floe-rl/core';

type Message = Readonly<Record<string, unknown>>;

/** A child process that `startChild` has started. */
export type BenchChild = {
  /** The message that reported that the child process is ready. It contains the `pid` of the process. */
  readonly ready: Message;
  /** Time in ms, read from the monotonic clock, at which the child process reported that it is ready. */
  readonly readyMs: number;
  /** Sends a request to the child process and resolves to its reply. Rejects with an Error when the process ends before it replies. */
  request(kind: string, fields?: Message): Promise<Message>;
  /** Ends the child process and waits until it has exited. */
  close(): Promise<void>;
};

/**
 * Starts a compiled module as a child process and waits until it is ready. The module must call `serveBench`. `args` are its command-line
 * arguments. Rejects with an Error when the process ends before it is ready.
 */
export async function startChild(
  module: URL,
  args: readonly string[],
  { execArgv = [] }: { readonly execArgv?: readonly string[] } = {},
): Promise<BenchChild> {
  const path = fileURLToPath(module);
  const child = fork(path, args, {
    execArgv: ['--expose-gc', ...execArgv],
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
  let isReady = (_: Message): void => {};
  const ready = new Promise<Message>((resolve) => {
    isReady = resolve;
  });
  const channel = new Channel<Handlers>(processPort(child), { operations: { ready: isReady } });
  const ended = once(child, 'exit').then(([code]) => {
    const error = new Error(`${path} ended with ${code}`);
    channel.close(error);
    return error;
  });
  return {
    ready: await Promise.race([ready, ended.then((error) => Promise.reject(error))]),
    readyMs: systemClock.monotonicMs(),
    request: (kind, fields = {}) => channel.call(kind, fields as never),
    close: async () => {
      if (child.connected) child.disconnect();
      await ended;
    },
  };
}

export type Handlers = Readonly<Record<string, (fields: never) => Message | Promise<Message>>>;

/**
 * Must be called in the child process. Sends `ready` to the parent process, and answers each request with the handler for its kind. When
 * the parent closes the IPC channel, calls `close` and exits.
 */
export function serveBench(ready: Message, handlers: Handlers, close: () => Promise<void> = async () => {}): void {
  const parent = new Channel<{ ready(message: Message): void }>(processPort(process), { operations: handlers });
  process.on('disconnect', async () => {
    await close();
    process.exit(0);
  });
  parent.notify('ready', { ...ready, pid: process.pid });
}

/** Returns the CPU time (user and system) that this process has used so far, in microseconds. */
export function cpuUs(): number {
  const { user, system } = process.cpuUsage();
  return user + system;
}

/**
 * Collects garbage twice, because the second collection frees the objects that finalizers released after the first. Requires `node
 * --expose-gc`.
 */
export function collectGarbage(): void {
  globalThis.gc?.();
  globalThis.gc?.();
}

/** Calls `work` once with each number from 0 to `count` - 1. At most `width` calls run concurrently. */
export async function inParallel(
  count: number,
  width: number,
  work: (index: number) => Promise<unknown>,
): Promise<void> {
  let next = 0;
  const lane = async (): Promise<void> => {
    for (let i = next++; i < count; i = next++) await work(i);
  };
  await Promise.all(Array.from({ length: Math.min(width, count) }, lane));
}
