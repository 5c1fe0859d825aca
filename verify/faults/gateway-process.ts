// Runs a gateway node as a separate process. The only argument is the gateway's configuration as JSON. Prints {"node_id", "control_url",
// "proxy_origin"} when the node is registered.

import { createLogger } from '@floe-rl/observe';
import { raisePriority } from '@floe-rl/sandbox';
import { startNode } from '#floe/up/stack';
import { reportMemoryOnSignal } from './memory.ts';

const log = createLogger('floe-gateway', process.env.FLOE_LOG_LEVEL ?? 'silent');
// The command `floe gateway` raises its priority, too.
raisePriority();
const node = await startNode(JSON.parse(process.argv[2] ?? ''), log);
const { nodeId: node_id, controlUrl: control_url, proxyOrigin: proxy_origin } = node;
process.stdout.write(`${JSON.stringify({ node_id, control_url, proxy_origin })}\n`);
reportMemoryOnSignal();
process.once('SIGTERM', async () => {
  await node.close();
  process.exit(0);
});
