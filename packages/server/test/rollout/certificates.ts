import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect } from 'node:tls';

/** Returns why test certificates cannot be created on this machine, and which command fixes that; `null` when they can be created. */
export function whyNoCertificates(): string | null {
  try {
    execFileSync('openssl', ['version'], { stdio: 'ignore' });
    return null;
  } catch {
    return 'openssl is not installed: apt-get install openssl';
  }
}

export type Pair = { readonly cert: string; readonly key: string };

/** A certificate authority for tests, with its files in a temporary directory that `remove` deletes. */
export class Authority {
  readonly dir = mkdtempSync(join(tmpdir(), 'floe-tls-'));
  readonly cert: string;
  private readonly key: string;

  constructor(name: string) {
    this.cert = join(this.dir, 'ca.pem');
    this.key = join(this.dir, 'ca.key');
    openssl('req', '-x509', ...NEW_KEY, '-keyout', this.key, '-out', this.cert, '-days', '2', '-subj', `/CN=${name}`);
  }

  /**
   * Creates a certificate for loopback servers and for clients. A second certificate with the same name replaces the files of the first.
   */
  issue(name: string): Pair {
    const [cert, key] = [join(this.dir, `${name}.pem`), join(this.dir, `${name}.key`)];
    const [request, extensions] = [join(this.dir, `${name}.csr`), join(this.dir, 'extensions')];
    writeFileSync(extensions, 'subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\n');
    openssl('req', ...NEW_KEY, '-keyout', key, '-out', request, '-subj', `/CN=${name}`);
    const by = ['-CA', this.cert, '-CAkey', this.key, '-CAcreateserial', '-extfile', extensions];
    openssl('x509', '-req', '-in', request, ...by, '-out', cert, '-days', '2');
    return { cert, key };
  }

  remove(): void {
    rmSync(this.dir, { recursive: true, force: true });
  }
}

const NEW_KEY = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];

function openssl(...args: string[]): void {
  execFileSync('openssl', args, { stdio: 'pipe' });
}

/** Returns the serial number of the certificate that the server at `url` presents to a new connection. */
export function serialOf(url: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = connect({ port: Number(new URL(url).port), host: '127.0.0.1', rejectUnauthorized: false }, () => {
      resolve(socket.getPeerCertificate().serialNumber);
      socket.destroy();
    });
    socket.once('error', reject);
  });
}
