import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeClient } from '@floe-rl/client';
import type { GatewayConfigInput } from '@floe-rl/node';
import { silentLogger } from '@floe-rl/observe';
import type { RolloutConfigInput } from '@floe-rl/server';
import { type SimOptions, type SimServer, startSim } from '@floe-rl/sim';
import { startNode, startServer } from '../up/stack.ts';

export type TestServiceOptions = {
  /** Options of the simulated engine: the scenarios that its policy follows, faults and delays. */
  readonly sim?: SimOptions;
  readonly server?: RolloutConfigInput;
  /** Changes to the node's default configuration. By default, agents run as plain processes in a temporary folder. */
  readonly node?: Partial<GatewayConfigInput>;
};

/** A complete floe in this process: rollout server, node and simulated engine. */
export type TestService = {
  /** Base URL of the rollout server's control API. */
  readonly url: string;
  readonly client: FloeClient;
  /** The simulated engine. Its ledger lists everything that it sampled. */
  readonly sim: SimServer;
  /** Ends server, node and simulated engine, and removes their files. */
  close(): Promise<void>;
};

/**
 * Starts a rollout server with a temporary SQLite database, one node and the simulated engine, on free ports of the loopback interface.
 * Agents run without a sandbox unless `node.default_backend` selects one. Throws `schema_violation` for invalid options, and `setup_failed`
 * when a part cannot be started.
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
