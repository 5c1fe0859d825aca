import { type ClientTlsFiles, FloeClient } from '@floe-rl/client';
import { FloeError } from '@floe-rl/core';
import type { Command } from 'commander';
import { findToken, TOKEN_FILE, TOKEN_HELP } from './secrets.ts';

export const DEFAULT_SERVER_PORT = 8080;
export const DEFAULT_SERVER_URL = `http://127.0.0.1:${DEFAULT_SERVER_PORT}`;

export const CA = '--ca <file>';
export const CA_HELP = 'certificate authorities to trust for the server, in PEM format (default: $FLOE_CA)';

export type ClientTlsOptions = { ca?: string; clientCert?: string; clientKey?: string };
export type ConnectionOptions = { url?: string; tokenFile?: string; ca?: string; json?: boolean };

/** Adds the options of a command for its connection to a rollout server. */
export function withConnectionOptions(command: Command): Command {
  return command
    .option('--url <url>', `URL of the rollout server (default: $FLOE_URL, else ${DEFAULT_SERVER_URL})`)
    .option(TOKEN_FILE, TOKEN_HELP)
    .option(CA, CA_HELP)
    .option('--json', 'print JSON');
}

/** How a command's calls are retried, as in the client's options. Default: not at all. */
type RetryOptions = {
  readonly retrySeconds?: number;
  readonly onRetry?: (failure: FloeError) => void;
};

/** Runs `work` with a client for the rollout server that the options name, and closes the client afterwards. */
export async function withClient<T>(
  options: ConnectionOptions,
  work: (client: FloeClient) => Promise<T>,
  retry: RetryOptions = {},
): Promise<T> {
  const url = options.url ?? process.env.FLOE_URL ?? DEFAULT_SERVER_URL;
  const client = new FloeClient({ url, token: findToken(options), tls: clientTls(options), ...retry });
  try {
    return await work(client);
  } finally {
    await client.close();
  }
}

/**
 * Returns the certificate files for a client. Returns `undefined` when neither the options nor `$FLOE_CA` name one: Node.js then uses its
 * own trust store, including `$NODE_EXTRA_CA_CERTS`. Throws `bad_request` when only one of certificate and key is given.
 */
export function clientTls({ ca, clientCert, clientKey }: ClientTlsOptions): ClientTlsFiles | undefined {
  tlsFilePair('--client-cert', clientCert, '--client-key', clientKey);
  const authorities = ca ?? (process.env.FLOE_CA || undefined);
  if (authorities === undefined && clientCert === undefined) return undefined;
  return { ca: authorities, cert: clientCert, key: clientKey };
}

/** Returns the files of a certificate and its key; `null` when neither is given. Throws `bad_request` when only one of them is given. */
export function tlsFilePair(
  certOption: string,
  cert: string | undefined,
  keyOption: string,
  key: string | undefined,
): { cert: string; key: string } | null {
  if (cert === undefined && key === undefined) return null;
  if (cert === undefined || key === undefined) {
    throw new FloeError('bad_request', `${certOption} and ${keyOption} must be given together`);
  }
  return { cert, key };
}
