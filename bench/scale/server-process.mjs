// A rollout server in a process of its own, so that its memory and CPU time can be told from the bench's.
import { startServer } from '../../dist/cli/stack.js';
import { silentLogger } from '../../dist/observe/log.js';

const { dir, config, database } = JSON.parse(process.argv[2]);
const server = await startServer(dir, { port: 0, ...config }, silentLogger, [], { database, blobs: null });
process.send({ url: server.url });

process.on('message', async (message) => {
  if (message === 'usage') {
    // Twice: what the first pass finalises the second one frees.
    globalThis.gc?.();
    globalThis.gc?.();
    const { user, system } = process.cpuUsage();
    const { rss, heapUsed, external } = process.memoryUsage();
    process.send({ rss, heap: heapUsed + external, cpuMs: (user + system) / 1000 });
  }
  if (message === 'close') {
    await server.close();
    process.exit(0);
  }
});
process.on('disconnect', () => process.exit(0));
