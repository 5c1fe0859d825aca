import type { Command } from 'commander';
import { FloeClient } from '../client/index.ts';
import { floeHome, readToken } from './home.ts';

export const DEFAULT_SERVER_PORT = 8080;
export const DEFAULT_SERVER_URL = `http://127.0.0.1:${DEFAULT_SERVER_PORT}`;

export type ConnectionOptions = { url?: string; token?: string; json?: boolean };

/** Adds the options that every command talking to a rollout server has. */
export function withConnection(command: Command): Command {
  return command
    .option('--url <url>', `rollout server (default: $FLOE_URL, else ${DEFAULT_SERVER_URL})`)
    .option('--token <token>', 'control token (default: $FLOE_TOKEN, else the one in the floe home)')
    .option('--json', 'machine-readable output');
}

/** Runs `work` with a client that is closed afterwards. */
export async function connected<T>(options: ConnectionOptions, work: (client: FloeClient) => Promise<T>): Promise<T> {
  const url = options.url ?? process.env.FLOE_URL ?? DEFAULT_SERVER_URL;
  const token = options.token ?? process.env.FLOE_TOKEN ?? readToken(floeHome());
  const client = new FloeClient({ url, token });
  try {
    return await work(client);
  } finally {
    await client.close();
  }
}
