import { AsyncLocalStorage } from 'node:async_hooks';
import { writeSync } from 'node:fs';
import { FloeError, linkAbort, messageOf, onAbort, systemClock } from '@floe-rl/core';
import { loadCatalog } from './catalog.ts';
import { directModel } from './direct-model.ts';
import { errorMessage, errorOf } from './error-message.ts';
import {
  CULPRIT_DESCRIPTOR,
  type HostMessage,
  type NodeRequest,
  type ProcessSetup,
  type WorkerMessage,
} from './protocol.ts';
import { remoteBox } from './remote-box.ts';
import { runEpisode } from './run-episode.ts';
import { ToolsetPool } from './toolset-pool.ts';

/**
 * A child process of a node that runs agents, environments and tools. The first message has the operator's modules and services. It ends with
 * the node, and when code that it runs throws outside every promise.
 */
let setUp = (_: ProcessSetup): void => {};
const setup = new Promise<ProcessSetup>((resolve) => {
  setUp = resolve;
});
const pool = new ToolsetPool(systemClock);

/** Number of the episode whose code runs. */
const current = new AsyncLocalStorage<number>();
const mark = Buffer.alloc(8);
let isClearing = false;

/**
 * Runs code of an episode, and writes down whose code it is until the next turn of the event loop. The node reads that when this process no
 * longer answers, because then code of that episode blocks the loop.
 */
function enter(episode: number, run: () => void): void {
  writeMark(episode);
  if (!isClearing) {
    isClearing = true;
    setImmediate(() => {
      isClearing = false;
      writeMark(0);
    });
  }
  current.run(episode, run);
}

function writeMark(episode: number): void {
  mark.writeDoubleLE(episode);
  writeSync(CULPRIT_DESCRIPTOR, mark, 0, mark.length, 0);
}

function send(message: WorkerMessage): void {
  process.send?.(message);
}

type Waiting = { readonly episode: number; resolve(value: unknown): void; reject(error: Error): void };

const waiting = new Map<number, Waiting>();
const running = new Map<number, ReturnType<typeof linkAbort>>();
let requests = 0;

function request(episode: number, body: NodeRequest, signal?: AbortSignal): Promise<unknown> {
  const number = ++requests;
  return new Promise((resolve, reject) => {
    const cancel = (): void => {
      waiting.delete(number);
      send({ type: 'cancel', request: number });
      reject(signal?.reason);
    };
    const release = onAbort(signal, cancel);
    if (signal?.aborted) return;
    waiting.set(number, {
      episode,
      resolve: (value) => {
        release();
        resolve(value);
      },
      reject: (error) => {
        release();
        reject(error);
      },
    });
    send({ type: 'request', request: number, episode, body });
  });
}

const catalog = setup.then(({ modules }) => loadCatalog(modules));
catalog.then(
  () => send({ type: 'ready' }),
  (error: unknown) => send({ type: 'broken', error: errorMessage(error) }),
);

async function start(episode: number, { order }: Extract<HostMessage, { readonly type: 'start' }>): Promise<void> {
  const abort = linkAbort();
  running.set(episode, abort);
  try {
    const { services, mcpServers } = await setup;
    const end = await runEpisode(order, {
      ...{ catalog: await catalog, pool, services, mcpServers },
      model: directModel((body, signal) => request(episode, { kind: 'ask', ...body }, signal)),
      box:
        order.workdir === null
          ? null
          : remoteBox(order.workdir, (body, signal) => request(episode, { kind: 'box', ...body }, signal)),
      signal: abort.signal,
    });
    send({ type: 'ended', episode, end });
  } catch (error) {
    send({ type: 'rejected', episode, error: errorMessage(error) });
  } finally {
    running.delete(episode);
  }
}

function settle(number: number, action: (waiter: Waiting) => void): void {
  const waiter = waiting.get(number);
  if (waiter === undefined) return;
  waiting.delete(number);
  enter(waiter.episode, () => action(waiter));
}

process.on('message', (message: HostMessage) => {
  switch (message.type) {
    case 'setup':
      setUp(message.setup);
      break;
    case 'start':
      enter(message.episode, () => void start(message.episode, message));
      break;
    case 'abort':
      enter(message.episode, () => running.get(message.episode)?.abort(errorOf(message.error)));
      break;
    case 'reply':
      settle(message.request, (waiter) => waiter.resolve(message.value));
      break;
    case 'failed':
      settle(message.request, (waiter) => waiter.reject(errorOf(message.error)));
      break;
    case 'ping':
      send({ type: 'pong' });
      break;
    case 'close':
      void end();
  }
});

/** Maximum time in milliseconds that toolsets have to close when the process ends. */
const CLOSE_MS = 5_000;

/** Closes the toolsets that are kept, and ends the process. */
async function end(): Promise<void> {
  systemClock.schedule(CLOSE_MS, () => process.exit(0));
  await pool.close();
  await catalog.then(({ close }) => close()).catch(() => {});
  process.exit(0);
}

process.on('disconnect', () => void end());

/** State that the episodes share may be broken now. The process therefore ends, and names the episode whose code threw. */
process.on('uncaughtException', (error: unknown) => {
  const message = messageOf(error);
  process.send?.({ type: 'crashed', episode: current.getStore() ?? 0, message } satisfies WorkerMessage, () =>
    process.exit(1),
  );
});

// A process that has lost its node must not run on when sending fails.
if (process.send === undefined) throw new FloeError('internal', 'agents run in a child process of a node');
