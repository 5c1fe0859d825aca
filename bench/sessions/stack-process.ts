// Runs a rollout server and one node in a separate process, so that the memory and CPU time of the bench are not measured with them. The
// arguments are the configurations of the node and of the server as JSON.
import { execFileSync } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { silentLogger } from '@floe-rl/observe';
import { startNode, startServer } from '#floe/up/stack';
import { collectGarbage, cpuUs, serveBench } from '../child.ts';

/** Returns the resident memory of the child processes in KiB. */
function childrenKib(): number {
  const sizes = execFileSync('ps', ['-o', 'rss=', '--ppid', String(process.pid)], { encoding: 'utf8' });
  return sizes
    .trim()
    .split(/\s+/)
    .reduce((sum, size) => sum + Number(size), 0);
}

const dir = await mkdtemp(join(tmpdir(), 'floe-bench-'));
const server = await startServer(
  join(dir, 'server'),
  { port: 0, ...JSON.parse(process.argv[3] ?? '{}') },
  silentLogger,
);
const node = await startNode(
  {
    ...JSON.parse(process.argv[2] ?? '{}'),
    node_id: 'bench',
    server_url: server.url,
    state_dir: join(dir, 'gateway'),
  },
  silentLogger,
);
serveBench(
  { url: server.url },
  {
    usage() {
      collectGarbage();
      return { rss: process.memoryUsage().rss, childrenKib: childrenKib(), cpuMs: cpuUs() / 1000 };
    },
  },
  async () => {
    await node.close();
    await server.close();
    await rm(dir, { recursive: true, force: true });
  },
);
