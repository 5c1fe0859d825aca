// Starts the server and the nodes that a measurement needs, and ends them after it.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeClient } from '../../src/client/index.ts';
import type { PoolSizes } from '../../src/gateway/node/config.ts';
import type { DispatchPolicy } from '../../src/gateway/node/stage-pools.ts';
import type { RolloutConfigInput } from '../../src/rollout/config.ts';
import { type BenchChild, startChild } from '../child.ts';

export type NodeOptions = {
  readonly nodeId: string;
  /**
   * How the node runs sessions. `noop`: sessions pass all stages without work. `staged`: each stage takes the time that the task's metadata
   * gives.
   */
  readonly mode: 'noop' | 'staged';
  readonly pools: PoolSizes;
  readonly policy?: DispatchPolicy;
};

/** The argument of node-process.ts, which is sent as JSON. */
export type NodeArguments = NodeOptions & { readonly url: string };

/** The argument of server-process.ts, which is sent as JSON. `database` is a PostgreSQL URL; `null` for SQLite in `dir`. */
export type ServerArguments = {
  readonly dir: string;
  readonly config: RolloutConfigInput;
  readonly database: string | null;
};

export type ServerOptions = { readonly database?: string | null; readonly config?: RolloutConfigInput };

export type Bench = {
  readonly client: FloeClient;
  readonly server: BenchChild;
  startNode(options: NodeOptions): Promise<BenchChild>;
};

export type Usage = { readonly rss: number; readonly heap: number; readonly cpuMs: number };

export async function usageOf(child: BenchChild): Promise<Usage> {
  return (await child.request('usage')) as Usage;
}

/** Calls `measure` with a server and functions that start nodes. Ends all processes and removes all files afterwards. */
export async function withServer<T>(
  { database = null, config = {} }: ServerOptions,
  measure: (bench: Bench) => Promise<T>,
): Promise<T> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-scale-'));
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
      server,
      startNode: (options) => start('./node-process.js', { url, ...options }),
    });
  } finally {
    for (const close of closers.reverse()) await close();
    await rm(dir, { recursive: true, force: true });
  }
}
