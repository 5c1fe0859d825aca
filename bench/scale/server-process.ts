// Runs a rollout server as a separate process, so that the memory and CPU time of the bench are not measured with it.

import { silentLogger } from '@floe-rl/observe';
import { startServer } from '#floe/up/stack';
import { collectGarbage, cpuUs, serveBench } from '../child.ts';
import type { ServerArguments } from './processes.ts';

const { dir, config, database } = JSON.parse(process.argv[2] ?? '') as ServerArguments;
const server = await startServer(dir, { port: 0, ...config }, silentLogger, [], { database, blobs: null });
serveBench(
  { url: server.url },
  {
    usage() {
      collectGarbage();
      const { rss, heapUsed, external } = process.memoryUsage();
      return { rss, heap: heapUsed + external, cpuMs: cpuUs() / 1000 };
    },
    cpu: () => ({ cpuMs: cpuUs() / 1000 }),
    rss: () => ({ rss: process.memoryUsage.rss() }),
  },
  () => server.close(),
);
