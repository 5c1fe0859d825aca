// Child processes of a bench. They receive requests over the IPC channel and can process several requests concurrently.
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { systemClock } from '@floe-rl/core';

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
  const pending = new Map<number, { resolve: (reply: Message) => void; reject: (error: Error) => void }>();
  let requests = 0;
  const reply = (id: number): Promise<Message> =>
    new Promise((resolve, reject) => void pending.set(id, { resolve, reject }));
  const ended = once(child, 'exit').then(([code]) => {
    for (const { reject } of pending.values()) reject(new Error(`${path} ended with ${code}`));
    pending.clear();
  });
  child.on('message', ({ id, ...fields }: { id: number }) => {
    pending.get(id)?.resolve(fields);
    pending.delete(id);
  });
  const ready = await reply(READY_ID);
  return {
    ready,
    readyMs: systemClock.monotonicMs(),
    request: (kind, fields = {}) => {
      const id = ++requests;
      const answer = reply(id);
      child.send({ ...fields, id, kind });
      return answer;
    },
    close: async () => {
      if (child.connected) child.disconnect();
      await ended;
    },
  };
}

/** Id of the message that reports that a child process is ready. Requests have higher ids. */
const READY_ID = 0;

export type Handlers = Readonly<Record<string, (fields: never) => Message | Promise<Message>>>;

/**
 * Must be called in the child process. Sends `ready` to the parent process, and answers each request with the handler for its kind. When
 * the parent closes the IPC channel, calls `close` and exits.
 */
export function serveBench(ready: Message, handlers: Handlers, close: () => Promise<void> = async () => {}): void {
  process.on('message', async ({ id, kind, ...fields }: { id: number; kind: string }) => {
    const handler = handlers[kind];
    if (handler === undefined) throw new Error(`this process has no handler for ${kind}`);
    process.send?.({ ...(await handler(fields as never)), id });
  });
  process.on('disconnect', async () => {
    await close();
    process.exit(0);
  });
  process.send?.({ ...ready, pid: process.pid, id: READY_ID });
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
