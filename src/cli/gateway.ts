import { join } from 'node:path';
import type { Command } from 'commander';
import { createLogger } from '../observe/log.ts';
import { chooseBackend, isolationWarning } from './backend.ts';
import { DEFAULT_SERVER_URL } from './connection.ts';
import { floeHome, harnessDir, readToken } from './home.ts';
import { untilSignalled } from './lifetime.ts';
import { type NodeOptions, nodeConfig, withNode } from './node-options.ts';
import { levelOption } from './options.ts';
import { json, line, note, paint } from './print.ts';
import { startNode } from './stack.ts';

type Options = NodeOptions & { server?: string; token?: string; stateDir?: string; logLevel: string; json?: boolean };

export function registerGateway(program: Command): void {
  withNode(
    program
      .command('gateway')
      .description('a node: takes sessions from a rollout server and runs them')
      .option('--server <url>', `rollout server (default: $FLOE_URL, else ${DEFAULT_SERVER_URL})`)
      .option('--token <token>', 'control token (default: $FLOE_TOKEN, else the one in the floe home)')
      .option('--state-dir <dir>', 'the node’s own directory (default: gateway/ in the floe home)')
      .option('--log-level <level>', 'trace to fatal', 'info')
      .option('--json', 'machine-readable output'),
  ).action(async (options: Options) => {
    const choice = options.backend === undefined ? await chooseBackend() : { backend: options.backend, problem: null };
    if (choice.problem !== null) note(paint('yellow', isolationWarning(choice.problem)));
    const node = await startNode(
      nodeConfig(options, {
        server_url: options.server ?? process.env.FLOE_URL ?? DEFAULT_SERVER_URL,
        token: options.token ?? process.env.FLOE_TOKEN ?? readToken(floeHome()),
        state_dir: options.stateDir ?? join(floeHome(), 'gateway'),
        harness_dir: harnessDir(),
        backend: choice.backend,
      }),
      createLogger('floe-gateway', levelOption(options.logLevel)),
    );
    if (options.json) json({ node_id: node.nodeId, control_url: node.controlUrl, proxy_url: node.proxyOrigin });
    else line(`node ${node.nodeId}: control ${node.controlUrl}, proxy ${node.proxyOrigin}`);
    await untilSignalled();
    note('ending the sessions of this node; they go back to the queue');
    await node.close();
  });
}
