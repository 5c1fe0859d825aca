import { join } from 'node:path';
import { createLogger } from '@floe-rl/observe';
import type { Command } from 'commander';
import { startServer } from '../up/stack.ts';
import { type ConfigFileOptions, readSettings, withConfigOption } from './config-file.ts';
import { DEFAULT_SERVER_PORT } from './connection.ts';
import { floeHome } from './home.ts';
import { waitForSignal } from './lifetime.ts';
import { LOG_LEVELS, levelOption, listed } from './options.ts';
import { printJson, printLine } from './print.ts';
import { type ServerSecretOptions, serverSecrets, withSecretOptions } from './secrets.ts';
import {
  type ListenerOptions,
  listenersOf,
  type PolarOption,
  polarOf,
  type StorageOptions,
  storageOf,
  withListenerOptions,
  withPolarOption,
  withStorageOptions,
} from './server-options.ts';

type Options = StorageOptions &
  ConfigFileOptions &
  ServerSecretOptions &
  ListenerOptions &
  PolarOption & {
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
      .description('run the rollout server')
      .option(
        '--topology <file>',
        'file from which the options of the replica --replica are taken: see docs/cluster.md',
      )
      .option('--replica <n>', 'number of this replica in the topology', '1')
      .option('--host <host>', 'address to listen on', '127.0.0.1')
      .option('--port <port>', 'port to listen on; 0 chooses a free one', String(DEFAULT_SERVER_PORT))
      .option('--dir <dir>', 'directory of the database and the blobs (default: server/ in the floe home)')
      .option('--no-auth', 'require no token; allowed on loopback addresses only')
      .option(
        '--callback-host <host...>',
        'hosts that callbacks may be sent to (default: loopback if the server listens there, else all others)',
      )
      .option('--builder <name...>', 'names of custom builders that the nodes have, so that tasks may use them', [])
      .option('--log-level <level>', listed(LOG_LEVELS), 'info')
      .option('--json', 'print JSON'),
  );
  withPolarOption(withConfigOption(withListenerOptions(withSecretOptions(command)))).action(
    async (options: Options) => {
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
          ...polarOf(options),
          callback_hosts: options.callbackHost ?? null,
        },
        log,
        options.builder,
        storageOf(options),
      );
      const { url, nodeUrl, adminUrl } = server;
      if (options.json) printJson({ url, node_url: nodeUrl, admin_url: adminUrl });
      else {
        printLine(`rollout server: ${url}  (data in ${dir}${options.auth ? '' : '; NO TOKEN, loopback only'})`);
        if (nodeUrl !== null) printLine(`for nodes:      ${nodeUrl}`);
        if (adminUrl !== null) printLine(`metrics:        ${adminUrl}/metrics`);
      }
      await waitForSignal();
      await server.close();
    },
  );
}
