// A rollout server, a node and the simulated engine in one process, for the examples. In earnest: `floe up`.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setUp } from '../tools/setup.mjs';

/** `scenarios`: what the simulated policy does, in the form of docs/sim.md. */
export async function startExampleStack(scenarios = []) {
  setUp();
  const { FloeClient } = await import('../dist/client/index.js');
  const { startNode, startServer } = await import('../dist/cli/stack.js');
  const { silentLogger } = await import('../dist/observe/log.js');
  const { startSim } = await import('../dist/sim/server.js');

  const dir = await mkdtemp(join(tmpdir(), 'floe-example-'));
  const sim = await startSim({ scenarios });
  const server = await startServer(join(dir, 'server'), { port: 0 }, silentLogger);
  const node = await startNode(
    {
      node_id: 'example',
      server_url: server.url,
      state_dir: join(dir, 'gateway'),
      harness_dir: join(dir, 'harnesses'),
      engines: [{ base_url: sim.url }],
      default_backend: 'local',
    },
    silentLogger,
  );
  const client = new FloeClient({ url: server.url });
  return {
    client,
    sim,
    async close() {
      await client.close();
      await node.close();
      await server.close();
      await sim.close();
      await rm(dir, { recursive: true, force: true });
    },
  };
}
