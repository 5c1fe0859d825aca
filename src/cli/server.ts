import { join } from 'node:path';
import type { Command } from 'commander';
import { createLogger } from '../observe/log.ts';
import { DEFAULT_SERVER_PORT } from './connection.ts';
import { ensureToken, floeHome } from './home.ts';
import { untilSignalled } from './lifetime.ts';
import { levelOption } from './options.ts';
import { json, line } from './print.ts';
import { startServer } from './stack.ts';
import { type StorageOptions, storageOf, withStorage } from './storage-options.ts';

type Options = StorageOptions & {
  host: string;
  port: string;
  dir?: string;
  token?: string;
  auth: boolean;
  callbackHost?: string[];
  builder: string[];
  logLevel: string;
  json?: boolean;
};

export function registerServer(program: Command): void {
  withStorage(
    program
      .command('server')
      .description('the rollout server: tasks, leases, results')
      .option('--host <host>', 'address to listen on', '127.0.0.1')
      .option('--port <port>', '0 picks a free one', String(DEFAULT_SERVER_PORT))
      .option('--dir <dir>', 'database and blobs (default: server/ in the floe home)')
      .option('--token <token>', 'control token (default: $FLOE_TOKEN, else the one in the floe home, made if need be)')
      .option('--no-auth', 'no token; loopback only')
      .option(
        '--callback-host <host...>',
        'hosts that callbacks may go to (default: loopback when listening there, else any)',
      )
      .option('--builder <name...>', 'custom builders that the nodes have and tasks may name', [])
      .option('--log-level <level>', 'trace to fatal', 'info')
      .option('--json', 'machine-readable output'),
  ).action(async (options: Options) => {
    const token = options.auth ? (options.token ?? process.env.FLOE_TOKEN ?? ensureToken(floeHome())) : null;
    const dir = options.dir ?? join(floeHome(), 'server');
    const log = createLogger('floe-server', levelOption(options.logLevel));
    const server = await startServer(
      dir,
      { host: options.host, port: Number(options.port), token, callback_hosts: options.callbackHost ?? null },
      log,
      options.builder,
      storageOf(options),
    );
    if (options.json) json({ url: server.url });
    else line(`rollout server: ${server.url}  (data in ${dir}${token === null ? '; NO TOKEN, loopback only' : ''})`);
    await untilSignalled();
    await server.close();
  });
}
