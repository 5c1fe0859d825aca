import { buildConnector } from 'undici';
import { readPem } from '../core/tls-files.ts';

/** PEM files of a client. They are read again for every connection, so that renewed ones are used without a restart. */
export type ClientTlsFiles = {
  /** Authorities that may have signed the server's certificate, in place of those that Node knows. */
  readonly ca?: string | null | undefined;
  /** What the client shows of itself, where the server asks for it. */
  readonly cert?: string | null | undefined;
  readonly key?: string | null | undefined;
};

/** How connections are made. Throws `setup_failed` for a file that cannot be read. */
export function connectorFor(files: ClientTlsFiles | undefined, timeoutMs: number): buildConnector.connector {
  const build = (): buildConnector.connector => buildConnector({ timeout: timeoutMs, ...read(files ?? {}) });
  const first = build();
  if (files === undefined) return first;
  return (options, callback) => {
    let connect: buildConnector.connector;
    try {
      connect = build();
    } catch (thrown) {
      callback(thrown as Error, null);
      return;
    }
    connect(options, callback);
  };
}

function read({ ca, cert, key }: ClientTlsFiles): { ca?: Buffer; cert?: Buffer; key?: Buffer } {
  return {
    ...(ca == null ? {} : { ca: readPem(ca) }),
    ...(cert == null ? {} : { cert: readPem(cert) }),
    ...(key == null ? {} : { key: readPem(key) }),
  };
}
