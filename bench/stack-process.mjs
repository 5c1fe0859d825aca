// A rollout server and one node in a process of their own, so that their memory and CPU time can be told from the bench's.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { startNode, startServer } from '../dist/cli/stack.js';
import { silentLogger } from '../dist/observe/log.js';

const options = JSON.parse(process.argv[2]);
const dir = await mkdtemp(join(tmpdir(), 'floe-bench-'));
const server = await startServer(join(dir, 'server'), { port: 0 }, silentLogger);
const node = await startNode(
  { ...options, node_id: 'bench', server_url: server.url, state_dir: join(dir, 'gateway') },
  silentLogger,
);
process.send({ url: server.url });

process.on('message', async (message) => {
  if (message === 'usage') {
    globalThis.gc?.();
    const { user, system } = process.cpuUsage();
    process.send({ rss: process.memoryUsage().rss, cpuMs: (user + system) / 1000 });
  }
  if (message === 'close') {
    await node.close();
    await server.close();
    await rm(dir, { recursive: true, force: true });
    process.exit(0);
  }
});
