import { AsyncLocalStorage } from 'node:async_hooks';
import { writeSync } from 'node:fs';
import { Channel, FloeError, linkAbort, messageOf, onAbort, processPort, systemClock } from '@floe-rl/core';
import { loadCatalog } from './catalog.ts';
import { directModel } from './direct-model.ts';
import { agentErrors } from './error-codec.ts';
import {
  CULPRIT_DESCRIPTOR,
  type HostOperations,
  type NodeRequest,
  type ProcessSetup,
  type WorkerOperations,
} from './protocol.ts';
import { remoteBox } from './remote-box.ts';
import { runEpisode } from './run-episode.ts';
import { ToolsetPool } from './toolset-pool.ts';

/*
 * The program of a child process of a node that runs agents, environments and tools. It ends with the node, and when code that it runs throws
 * outside every promise.
 */

type Loaded = ProcessSetup & { readonly catalog: Awaited<ReturnType<typeof loadCatalog>> };

let loading: Promise<Loaded> | null = null;
const pool = new ToolsetPool(systemClock);

/** Number of the episode whose code runs. */
const current = new AsyncLocalStorage<number>();
const mark = Buffer.alloc(8);
let isClearing = false;

/**
 * Runs code of an episode, and writes down whose code it is until the next turn of the event loop. The node reads that when this process no
 * longer answers, because then code of that episode blocks the loop.
 */
function enter<T>(episode: number, run: () => T): T {
  markEpisode(episode);
  return current.run(episode, run);
}

function markEpisode(episode: number): void {
  writeMark(episode);
  if (!isClearing) {
    isClearing = true;
    setImmediate(() => {
      isClearing = false;
      writeMark(0);
    });
  }
}

function writeMark(episode: number): void {
  mark.writeDoubleLE(episode);
  writeSync(CULPRIT_DESCRIPTOR, mark, 0, mark.length, 0);
}

async function load(setup: ProcessSetup): Promise<Loaded> {
  return { ...setup, catalog: await loadCatalog(setup.modules) };
}

/** Runs an episode until `signal` aborts. */
async function run(
  { episode, order }: Parameters<WorkerOperations['run']>[0],
  signal: AbortSignal,
): ReturnType<WorkerOperations['run']> {
  if (loading === null) throw new FloeError('internal', 'an episode has begun before the modules were loaded');
  const abort = linkAbort();
  const release = onAbort(signal, () => enter(episode, () => abort.abort(signal.reason)));
  let hasEnded = false;
  const request = async (body: NodeRequest, limit?: AbortSignal): Promise<unknown> => {
    limit?.throwIfAborted();
    // What the code of an ended episode waits for never comes, so that it cannot request it again and again.
    if (hasEnded || signal.aborted) return new Promise(() => {});
    try {
      return await node.call('perform', { episode, body }, { signal: limit });
    } finally {
      // What follows is code of the episode.
      markEpisode(episode);
    }
  };
  try {
    const { services, mcpServers, catalog } = await loading;
    return await runEpisode(order, {
      ...{ catalog, pool, services, mcpServers },
      model: directModel((body, limit) => request({ kind: 'ask', ...body }, limit)),
      box:
        order.workdir === null
          ? null
          : remoteBox(order.workdir, (body, limit) => request({ kind: 'box', ...body }, limit)),
      signal: abort.signal,
    });
  } finally {
    hasEnded = true;
    release();
  }
}

const operations: WorkerOperations = {
  setup: async (setup) => {
    loading = load(setup);
    await loading;
  },
  run: (start, signal) => enter(start.episode, () => run(start, signal)),
  ping: () => {},
  close: () => end(),
};

const node = new Channel<HostOperations>(processPort(process), { operations, errors: agentErrors });

/** Maximum time in milliseconds that toolsets have to close when the process ends. */
const CLOSE_MS = 5_000;

/** Closes the toolsets that are kept, and ends the process. */
async function end(): Promise<void> {
  systemClock.schedule(CLOSE_MS, () => process.exit(0));
  await pool.close();
  await loading?.then(({ catalog }) => catalog.close()).catch(() => {});
  process.exit(0);
}

process.on('disconnect', () => void end());

/** State that the episodes share may be broken now. The process therefore ends, and names the episode whose code threw. */
process.on('uncaughtException', (error: unknown) => {
  node.notify('crashed', { episode: current.getStore() ?? 0, message: messageOf(error) }, () => process.exit(1));
});

// A process that has lost its node must not run on when sending fails.
if (process.send === undefined) throw new FloeError('internal', 'agents run in a child process of a node');
