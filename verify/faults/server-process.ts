// Runs a rollout server as a separate process, so that a fault program can kill or suspend it. The only argument is JSON of { dir,
// database, blobs, config }. Prints {"url"} when the server accepts requests.

import { createLogger } from '@floe-rl/observe';
import { startServer } from '#floe/up/stack';
import { reportMemoryOnSignal } from './memory.ts';

const { dir, config, ...storage } = JSON.parse(process.argv[2] ?? '');
const log = createLogger('floe-server', process.env.FLOE_LOG_LEVEL ?? 'silent');
const server = await startServer(dir, config, log, [], storage);
process.stdout.write(`${JSON.stringify({ url: server.url })}\n`);
reportMemoryOnSignal();
process.once('SIGTERM', async () => {
  await server.close();
  process.exit(0);
});
