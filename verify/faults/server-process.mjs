// A rollout server as a process of its own, to be killed, stopped or starved by a fault program.
// argv: JSON of { dir, database, blobs, config }. Prints {"url"} when it is ready.
import { startServer } from '../dist/cli/stack.js';
import { createLogger } from '../dist/observe/log.js';
import { tellMemory } from './memory.mjs';

const { dir, config, ...storage } = JSON.parse(process.argv[2]);
const log = createLogger('floe-server', process.env.FLOE_LOG_LEVEL ?? 'silent');
const server = await startServer(dir, config, log, [], storage);
process.stdout.write(`${JSON.stringify({ url: server.url })}\n`);
tellMemory();
process.once('SIGTERM', async () => {
  await server.close();
  process.exit(0);
});
