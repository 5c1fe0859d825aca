import type { Command } from 'commander';
import type { ClientTlsFiles } from '../client/index.ts';
import { FloeError } from '../core/errors.ts';
import type { RolloutConfigInput } from '../rollout/config.ts';

export type ClientTlsOptions = { ca?: string; clientCert?: string; clientKey?: string };

export const CA = '--ca <file>';
export const CA_HELP = 'authorities that may have signed the server’s certificate, PEM (default: $FLOE_CA)';

/** Undefined: what Node trusts by itself, `$NODE_EXTRA_CA_CERTS` among it. Throws `bad_request` for half a pair. */
export function clientTls({ ca, clientCert, clientKey }: ClientTlsOptions): ClientTlsFiles | undefined {
  pair('--client-cert', clientCert, '--client-key', clientKey);
  const authorities = ca ?? (process.env.FLOE_CA || undefined);
  if (authorities === undefined && clientCert === undefined) return undefined;
  return { ca: authorities, cert: clientCert, key: clientKey };
}

export type ListenerOptions = {
  tlsCert?: string;
  tlsKey?: string;
  tlsClientCa?: string;
  nodeListen?: string;
  adminListen?: string;
};

export function withListeners(command: Command): Command {
  return command
    .option('--tls-cert <file>', 'certificate chain, PEM; read again when it changes')
    .option('--tls-key <file>', 'its private key')
    .option('--tls-client-ca <file>', 'nodes must show a certificate that one of these authorities has signed')
    .option('--node-listen <host:port>', 'an address of their own for nodes, so that a firewall can tell them apart')
    .option('--admin-listen <host:port>', 'an address of their own for metrics');
}

/** Throws `bad_request`, naming the option. */
export function listenersOf(
  options: ListenerOptions,
): Pick<RolloutConfigInput, 'tls' | 'node_listener' | 'admin_listener'> {
  const files = pair('--tls-cert', options.tlsCert, '--tls-key', options.tlsKey);
  if (files === null && options.tlsClientCa !== undefined) {
    throw new FloeError('bad_request', '--tls-client-ca: needs --tls-cert and --tls-key');
  }
  return {
    tls: files === null ? null : { ...files, client_ca: options.tlsClientCa ?? null },
    node_listener: place('--node-listen', options.nodeListen),
    admin_listener: place('--admin-listen', options.adminListen),
  };
}

/** Both files, or null for neither. */
export function pair(
  certOption: string,
  cert: string | undefined,
  keyOption: string,
  key: string | undefined,
): { cert: string; key: string } | null {
  if (cert === undefined && key === undefined) return null;
  if (cert === undefined || key === undefined) {
    throw new FloeError('bad_request', `${certOption} and ${keyOption} go together`);
  }
  return { cert, key };
}

function place(option: string, text: string | undefined): { host: string; port: number } | null {
  if (text === undefined) return null;
  const [, host, port] = /^(?:\[([^\]]+)\]|([^:]+)):(\d{1,5})$/.exec(text)?.filter((part) => part !== undefined) ?? [];
  if (host === undefined || port === undefined || Number(port) > 65_535) {
    throw new FloeError('bad_request', `${option}: ${text} is not host:port`);
  }
  return { host, port: Number(port) };
}
