import { join } from 'node:path';
import type { Command } from 'commander';
import { createLogger } from '../observe/log.ts';
import { type ConfigFileOptions, readSettings, withConfigOption } from './config-file.ts';
import { DEFAULT_SERVER_PORT } from './connection.ts';
import { floeHome } from './home.ts';
import { waitForSignal } from './lifetime.ts';
import { levelOption } from './options.ts';
import { json, line } from './print.ts';
import { type ServerSecretOptions, serverSecrets, withSecretOptions } from './secrets.ts';
import {
  type ListenerOptions,
  listenersOf,
  type StorageOptions,
  storageOf,
  withListenerOptions,
  withStorageOptions,
} from './server-options.ts';
import { startServer } from './stack.ts';

type Options = StorageOptions &
  ConfigFileOptions &
  ServerSecretOptions &
  ListenerOptions & {
    host: string;
    port: string;
    dir?: string;
    auth: boolean;
    callbackHost?: string[];
    builder: string[];
    logLevel: string;
    json?: boolean;
  };

export function registerServer(program: Command): void {
  const command = withStorageOptions(
    program
      .command('server')
      .description('the rollout server: tasks, leases, results')
      .option('--topology <file>', 'take what follows from a topology: docs/cluster.md')
      .option('--replica <n>', 'which replica of the topology this is', '1')
      .option('--host <host>', 'address to listen on', '127.0.0.1')
      .option('--port <port>', '0 picks a free one', String(DEFAULT_SERVER_PORT))
      .option('--dir <dir>', 'database and blobs (default: server/ in the floe home)')
      .option('--no-auth', 'no token; loopback only')
      .option(
        '--callback-host <host...>',
        'hosts that callbacks may go to (default: loopback when listening there, else any other)',
      )
      .option('--builder <name...>', 'custom builders that the nodes have and tasks may name', [])
      .option('--log-level <level>', 'trace to fatal', 'info')
      .option('--json', 'machine-readable output'),
  );
  withConfigOption(withListenerOptions(withSecretOptions(command))).action(async (options: Options) => {
    const dir = options.dir ?? join(floeHome(), 'server');
    const log = createLogger('floe-server', levelOption(options.logLevel));
    const settings = await readSettings(options);
    const server = await startServer(
      dir,
      {
        ...settings.server,
        host: options.host,
        port: Number(options.port),
        ...serverSecrets(options),
        ...listenersOf(options),
        callback_hosts: options.callbackHost ?? null,
      },
      log,
      options.builder,
      storageOf(options),
    );
    const { url, nodeUrl, adminUrl } = server;
    if (options.json) json({ url, node_url: nodeUrl, admin_url: adminUrl });
    else {
      line(`rollout server: ${url}  (data in ${dir}${options.auth ? '' : '; NO TOKEN, loopback only'})`);
      if (nodeUrl !== null) line(`for nodes:      ${nodeUrl}`);
      if (adminUrl !== null) line(`metrics:        ${adminUrl}/metrics`);
    }
    await waitForSignal();
    await server.close();
  });
}
