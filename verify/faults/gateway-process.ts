// A gateway node as a process of its own. argv: JSON of its configuration. Prints {"node_id", "control_url"} once it is registered.
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
