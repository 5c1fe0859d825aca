// A gateway node as a process of its own. argv: JSON of its config. Prints {"node_id", "control_url"} when it is registered.
import { startNode } from '../dist/cli/stack.js';
import { createLogger } from '../dist/observe/log.js';
import { tellMemory } from './memory.mjs';

const node = await startNode(
  JSON.parse(process.argv[2]),
  createLogger('floe-gateway', process.env.FLOE_LOG_LEVEL ?? 'silent'),
);
process.stdout.write(`${JSON.stringify({ node_id: node.nodeId, control_url: node.controlUrl })}\n`);
tellMemory();
process.once('SIGTERM', async () => {
  await node.close();
  process.exit(0);
});
