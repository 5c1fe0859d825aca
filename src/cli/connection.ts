import type { Command } from 'commander';
import { FloeClient } from '../client/index.ts';
import { knownToken, TOKEN_FILE, TOKEN_HELP } from './secrets.ts';
import { CA, CA_HELP, clientTls } from './tls-options.ts';

export const DEFAULT_SERVER_PORT = 8080;
export const DEFAULT_SERVER_URL = `http://127.0.0.1:${DEFAULT_SERVER_PORT}`;

export type ConnectionOptions = { url?: string; tokenFile?: string; ca?: string; json?: boolean };

/** Adds the options that every command talking to a rollout server has. */
export function withConnection(command: Command): Command {
  return command
    .option('--url <url>', `rollout server (default: $FLOE_URL, else ${DEFAULT_SERVER_URL})`)
    .option(TOKEN_FILE, TOKEN_HELP)
    .option(CA, CA_HELP)
    .option('--json', 'machine-readable output');
}

/** Runs `work` with a client that is closed afterwards. */
export async function connected<T>(options: ConnectionOptions, work: (client: FloeClient) => Promise<T>): Promise<T> {
  const url = options.url ?? process.env.FLOE_URL ?? DEFAULT_SERVER_URL;
  const client = new FloeClient({ url, token: knownToken(options), tls: clientTls(options) });
  try {
    return await work(client);
  } finally {
    await client.close();
  }
}
