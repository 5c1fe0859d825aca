import { readFileSync, statSync } from 'node:fs';
import { createSecureContext } from 'node:tls';
import type { Clock } from './clock.ts';
import { asFloeError, FloeError } from './errors.ts';

/** Paths of PEM files: a certificate chain and its key, and the authorities that peers' certificates are checked with. */
export type TlsFiles = { readonly cert: string; readonly key: string; readonly ca: string | null };

export type TlsMaterial = { readonly cert: Buffer; readonly key: Buffer; readonly ca?: Buffer };

/** A renewed certificate is in use after this time; the files are few and small. */
const LOOK_AGAIN_MS = 5_000;

/** Throws `setup_failed` naming the file that cannot be read, or saying that certificate and key do not fit together. */
export function readTls(files: TlsFiles): TlsMaterial {
  const material = {
    cert: readPem(files.cert),
    key: readPem(files.key),
    ...(files.ca === null ? {} : { ca: readPem(files.ca) }),
  };
  try {
    createSecureContext(material);
  } catch (cause) {
    const { message } = asFloeError(cause);
    throw new FloeError(
      'setup_failed',
      `the certificate ${files.cert} cannot be used: ${message}`,
      { ...files },
      cause,
    );
  }
  return material;
}

/** Throws `setup_failed` naming the file. */
export function readPem(path: string): Buffer {
  try {
    return readFileSync(path);
  } catch (cause) {
    throw new FloeError('setup_failed', `${path} cannot be read: ${asFloeError(cause).message}`, { path }, cause);
  }
}

/**
 * Calls `apply` with what the files hold whenever they change; returns the end of that. Files that cannot be used, for
 * instance because only one of them has been replaced so far, are told to `onProblem`, once for each change.
 */
export function followTls(
  files: TlsFiles,
  clock: Clock,
  apply: (material: TlsMaterial) => void,
  onProblem: (error: FloeError) => void,
): () => void {
  let known = fingerprint(files);
  let told: string | null = null;
  let cancelTimer = (): void => {};
  const look = (): void => {
    const now = fingerprint(files);
    if (now === known) told = null;
    else {
      try {
        apply(readTls(files));
        known = now;
        told = null;
      } catch (thrown) {
        if (told !== now) onProblem(asFloeError(thrown));
        told = now;
      }
    }
    cancelTimer = clock.schedule(LOOK_AGAIN_MS, look);
  };
  cancelTimer = clock.schedule(LOOK_AGAIN_MS, look);
  return () => cancelTimer();
}

/** Changes when a file is written, replaced, linked to another, or cannot be looked at. */
function fingerprint(files: TlsFiles): string {
  const paths = [files.cert, files.key, ...(files.ca === null ? [] : [files.ca])];
  return paths.map(stateOf).join(' ');
}

function stateOf(path: string): string {
  try {
    const { ino, size, mtimeMs } = statSync(path);
    return `${ino}:${size}:${mtimeMs}`;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? 'unknown';
  }
}
