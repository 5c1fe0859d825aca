import { join } from 'node:path';
import { sleep, systemClock } from '@floe-rl/core';
import type { Gateway } from '@floe-rl/node';
import { createLogger } from '@floe-rl/observe';
import { raisePriority } from '@floe-rl/sandbox';
import type { Command } from 'commander';
import { startNode } from '../up/stack.ts';
import { chooseBackend, isolationWarning } from './backend.ts';
import { type ConfigFileOptions, readSettings } from './config-file.ts';
import { CA, CA_HELP, type ClientTlsOptions, clientTls, DEFAULT_SERVER_URL, tlsFilePair } from './connection.ts';
import { floeHome, harnessDir } from './home.ts';
import { displacedError, waitForSignal } from './lifetime.ts';
import { type NodeOptions, nodeConfig, withNodeOptions } from './node-options.ts';
import { LOG_LEVELS, levelOption, listed, secondsOption } from './options.ts';
import { paint, printJson, printLine, printNote } from './print.ts';
import { findToken, TOKEN_FILE, TOKEN_HELP } from './secrets.ts';

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
      .description('run a node, which takes sessions from a rollout server and runs them')
      .option('--topology <file>', 'file from which the options of the node --node-id are taken: see docs/cluster.md')
      .option('--server <url>', `URL of the rollout server (default: $FLOE_URL, else ${DEFAULT_SERVER_URL})`)
      .option(TOKEN_FILE, TOKEN_HELP)
      .option(CA, CA_HELP)
      .option('--client-cert <file>', 'client certificate of the node, for servers that require one')
      .option('--client-key <file>', 'private key of the client certificate')
      .option('--tls-cert <file>', 'certificate chain of the node’s control listener')
      .option('--tls-key <file>', 'private key of that certificate')
      .option('--state-dir <dir>', 'directory of the node (default: gateway/ in the floe home)')
      .option('--drain-seconds <n>', 'time for running sessions to finish after a stop signal', '0')
      .option('--log-level <level>', listed(LOG_LEVELS), 'info')
      .option('--json', 'print JSON'),
  ).action(async (options: Options) => {
    const drainSeconds = secondsOption('--drain-seconds', options.drainSeconds);
    const settings = await readSettings(options);
    const choice = options.backend === undefined ? await chooseBackend() : { backend: options.backend, problem: null };
    if (choice.problem !== null) printNote(paint('yellow', isolationWarning(choice.problem)));
    raisePriority();
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
    const { nodeId: node_id, controlUrl: control_url, proxyOrigin: proxy_url, proxyOrigins: proxy_urls } = node;
    if (options.json) printJson({ node_id, control_url, proxy_url, proxy_urls });
    else printLine(`node ${node_id}: control ${control_url}, proxy ${proxy_urls.join(' ')}`);
    await runUntilStopped(node, drainSeconds);
  });
}

/**
 * Runs the node until SIGINT or SIGTERM. The node then leases no more sessions, and its running sessions may finish. After `drainSeconds`,
 * or at the next signal, the sessions that still run are ended and return to the queue. When a newer process takes over the node's id, the
 * node is closed at once and the promise rejects.
 */
async function runUntilStopped(node: Gateway, drainSeconds: number): Promise<void> {
  const over = new AbortController();
  const displaced = node.takenOver;
  try {
    if ((await Promise.race([displaced, waitForSignal(over.signal)])) === undefined && drainSeconds > 0) {
      printNote(`The node is taking no more sessions; running ones have ${drainSeconds} s to finish.`);
      const timeLimit = sleep(systemClock, drainSeconds * 1000, over.signal).catch(() => undefined);
      await Promise.race([node.drain(), displaced, waitForSignal(over.signal), timeLimit]);
    }
  } finally {
    // Aborting `over` removes the signal handlers, so that a further signal ends the process immediately.
    over.abort();
    printNote('The remaining sessions of this node are ended and return to the queue.');
    await node.close();
  }
  const takeover = await Promise.race([displaced, Promise.resolve(null)]);
  if (takeover !== null) throw displacedError(takeover);
}
