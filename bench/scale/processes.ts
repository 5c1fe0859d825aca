// Starts the server and node processes that a measurement needs, and ends them after the measurement.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeClient } from '@floe-rl/client';
import type { DispatchPolicy } from '@floe-rl/node';
import type { RolloutConfigInput } from '@floe-rl/server';
import type { PoolSizes } from '#node/gateway/node/config';
import { type BenchChild, startChild } from '../child.ts';

export type NodeOptions = {
  readonly nodeId: string;
  /**
   * How the node runs sessions. `noop`: sessions pass through all stages without waiting. `staged`: each stage lasts as long as the task's
   * metadata states.
   */
  readonly mode: 'noop' | 'staged';
  readonly pools: PoolSizes;
  readonly policy?: DispatchPolicy;
};

/** The command-line argument of node-process.ts, which is passed as JSON. */
export type NodeArguments = NodeOptions & { readonly url: string };

/**
 * The command-line argument of server-process.ts, which is passed as JSON. `database` is a PostgreSQL URL; `null` for SQLite in the folder
 * `dir`.
 */
export type ServerArguments = {
  readonly dir: string;
  readonly config: RolloutConfigInput;
  readonly database: string | null;
};

export type ServerOptions = {
  readonly database?: string | null;
  readonly config?: RolloutConfigInput;
  /** Folder of the server, which is kept. Default: a new one, which is removed. */
  readonly dir?: string;
};

export type Bench = {
  readonly client: FloeClient;
  readonly url: string;
  readonly server: BenchChild;
  startNode(options: NodeOptions): Promise<BenchChild>;
};

export type Usage = { readonly rss: number; readonly heap: number; readonly cpuMs: number };

export async function usageOf(child: BenchChild): Promise<Usage> {
  return (await child.request('usage')) as Usage;
}

/**
 * Starts a server and calls `measure` with it and with a function that starts nodes. Afterwards ends all processes and removes all files.
 */
export async function withServer<T>(
  { database = null, config = {}, dir: kept }: ServerOptions,
  measure: (bench: Bench) => Promise<T>,
): Promise<T> {
  const dir = kept ?? (await mkdtemp(join(tmpdir(), 'floe-scale-')));
  const closers: (() => Promise<void>)[] = [];
  const start = async (module: string, argument: NodeArguments | ServerArguments): Promise<BenchChild> => {
    const child = await startChild(new URL(module, import.meta.url), [JSON.stringify(argument)]);
    closers.push(() => child.close());
    return child;
  };
  try {
    const server = await start('./server-process.js', { dir, config, database });
    const url = String(server.ready.url);
    const client = new FloeClient({ url });
    closers.push(() => client.close());
    return await measure({
      client,
      url,
      server,
      startNode: (options) => start('./node-process.js', { url, ...options }),
    });
  } finally {
    for (const close of closers.reverse()) await close();
    if (kept === undefined) await rm(dir, { recursive: true, force: true });
  }
}
