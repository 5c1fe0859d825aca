import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { startNode, startServer } from '../cli/stack.ts';
import { FloeClient } from '../client/index.ts';
import type { GatewayConfigInput } from '../gateway/node/config.ts';
import { silentLogger } from '../observe/log.ts';
import type { RolloutConfigInput } from '../rollout/config.ts';
import { type SimOptions, type SimServer, startSim } from '../sim/index.ts';

export type TestServiceOptions = {
  /** The simulated engine: the scenarios that its policy follows, faults, delays. */
  readonly sim?: SimOptions;
  readonly server?: RolloutConfigInput;
  /** The node's configuration, over one that runs agents as plain processes in a temporary folder. */
  readonly node?: Partial<GatewayConfigInput>;
};

/** A whole floe in this process: server, node and simulated engine. */
export type TestService = {
  /** Base URL of the control API. */
  readonly url: string;
  readonly client: FloeClient;
  /** The engine, with the ledger of everything that it sampled. */
  readonly sim: SimServer;
  /** Ends everything and removes its files. */
  close(): Promise<void>;
};

/**
 * Starts a rollout server over a temporary SQLite database, one node and the simulated engine on free ports of loopback. Agents run without
 * a sandbox unless `node.default_backend` says otherwise. Throws `setup_failed` or `schema_violation`.
 */
export async function startTestService(options: TestServiceOptions = {}): Promise<TestService> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-test-service-'));
  const closers: (() => Promise<unknown>)[] = [() => rm(dir, { recursive: true, force: true })];
  const close = async (): Promise<void> => {
    for (const closer of closers.splice(0).reverse()) await closer();
  };
  try {
    const sim = await startSim(options.sim);
    closers.push(() => sim.close());
    const server = await startServer(join(dir, 'server'), { port: 0, ...options.server }, silentLogger);
    closers.push(() => server.close());
    const node = await startNode(
      {
        node_id: 'test',
        server_url: server.url,
        state_dir: join(dir, 'gateway'),
        harness_dir: join(dir, 'harnesses'),
        engines: [{ base_url: sim.url }],
        default_backend: 'local',
        ...options.node,
      },
      silentLogger,
    );
    closers.push(() => node.close());
    const client = new FloeClient({ url: server.url });
    closers.push(() => client.close());
    return { url: server.url, client, sim, close };
  } catch (error) {
    await close();
    throw error;
  }
}
