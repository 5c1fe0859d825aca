// Runs a gateway node in a separate process. The only argument is its configuration as JSON. Prints {"node_id", "control_url"} when the
// node is registered.
import { startNode } from '../../src/cli/stack.ts';
import { createLogger } from '../../src/observe/log.ts';
import { reportMemoryOnSignal } from './memory.ts';

const log = createLogger('floe-gateway', process.env.FLOE_LOG_LEVEL ?? 'silent');
const node = await startNode(JSON.parse(process.argv[2] ?? ''), log);
process.stdout.write(`${JSON.stringify({ node_id: node.nodeId, control_url: node.controlUrl })}\n`);
reportMemoryOnSignal();
process.once('SIGTERM', async () => {
  await node.close();
  process.exit(0);
});
