import { join } from 'node:path';
import type { Command } from 'commander';
import { sleep, systemClock } from '../core/clock.ts';
import type { Gateway } from '../gateway/node/gateway.ts';
import { createLogger } from '../observe/log.ts';
import { chooseBackend, isolationWarning } from './backend.ts';
import { type ConfigFileOptions, readSettings } from './config-file.ts';
import { CA, CA_HELP, type ClientTlsOptions, clientTls, DEFAULT_SERVER_URL, tlsFilePair } from './connection.ts';
import { floeHome, harnessDir } from './home.ts';
import { takenOver, waitForSignal } from './lifetime.ts';
import { type NodeOptions, nodeConfig, withNodeOptions } from './node-options.ts';
import { levelOption, secondsOption } from './options.ts';
import { json, line, note, paint } from './print.ts';
import { findToken, TOKEN_FILE, TOKEN_HELP } from './secrets.ts';
import { startNode } from './stack.ts';

type Options = NodeOptions &
  ConfigFileOptions &
  ClientTlsOptions & {
    server?: string;
    tokenFile?: string;
    tlsCert?: string;
    tlsKey?: string;
    stateDir?: string;
    drainSeconds: string;
    logLevel: string;
    json?: boolean;
  };

export function registerGateway(program: Command): void {
  withNodeOptions(
    program
      .command('gateway')
      .description('a node: takes sessions from a rollout server and runs them')
      .option('--topology <file>', 'take what follows from the --node-id of a topology: docs/cluster.md')
      .option('--server <url>', `rollout server (default: $FLOE_URL, else ${DEFAULT_SERVER_URL})`)
      .option(TOKEN_FILE, TOKEN_HELP)
      .option(CA, CA_HELP)
      .option('--client-cert <file>', 'what the node shows of itself, where the server asks for it')
      .option('--client-key <file>', 'its private key')
      .option('--tls-cert <file>', 'certificate chain of the node’s control listener')
      .option('--tls-key <file>', 'its private key')
      .option('--state-dir <dir>', 'the node’s own directory (default: gateway/ in the floe home)')
      .option('--drain-seconds <n>', 'when told to stop, how long sessions may still finish', '0')
      .option('--log-level <level>', 'trace to fatal', 'info')
      .option('--json', 'machine-readable output'),
  ).action(async (options: Options) => {
    const drainSeconds = secondsOption('--drain-seconds', options.drainSeconds);
    const settings = await readSettings(options);
    const choice = options.backend === undefined ? await chooseBackend() : { backend: options.backend, problem: null };
    if (choice.problem !== null) note(paint('yellow', isolationWarning(choice.problem)));
    const node = await startNode(
      nodeConfig(options, {
        ...settings.node,
        server_url: options.server ?? process.env.FLOE_URL ?? DEFAULT_SERVER_URL,
        token: findToken(options),
        server_tls: clientTls(options) ?? null,
        control_tls: tlsFilePair('--tls-cert', options.tlsCert, '--tls-key', options.tlsKey),
        state_dir: options.stateDir ?? join(floeHome(), 'gateway'),
        harness_dir: harnessDir(),
        backend: choice.backend,
      }),
      createLogger('floe-gateway', levelOption(options.logLevel)),
    );
    if (options.json) json({ node_id: node.nodeId, control_url: node.controlUrl, proxy_url: node.proxyOrigin });
    else line(`node ${node.nodeId}: control ${node.controlUrl}, proxy ${node.proxyOrigin}`);
    await live(node, drainSeconds);
  });
}

/**
 * Until a signal: then sessions may finish for `drainSeconds`, or until the next signal, and what is left goes back to the
 * queue. Rejects, with everything ended, when a newer process takes the node's id over.
 */
async function live(node: Gateway, drainSeconds: number): Promise<void> {
  const over = new AbortController();
  const displaced = node.takenOver;
  try {
    if ((await Promise.race([displaced, waitForSignal(over.signal)])) === undefined && drainSeconds > 0) {
      note(`taking no more sessions; those that run have ${drainSeconds} s`);
      const late = sleep(systemClock, drainSeconds * 1000, over.signal).catch(() => undefined);
      await Promise.race([node.drain(), displaced, waitForSignal(over.signal), late]);
    }
  } finally {
    // From here on a signal ends the process at once.
    over.abort();
    note('ending the sessions of this node; they go back to the queue');
    await node.close();
  }
  const by = await Promise.race([displaced, Promise.resolve(null)]);
  if (by !== null) throw takenOver(by);
}
