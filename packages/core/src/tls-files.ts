import { readFileSync, statSync } from 'node:fs';
import { createSecureContext } from 'node:tls';
import type { Clock } from './clock.ts';
import { asFloeError, FloeError } from './errors.ts';

/**
 * Paths of PEM files: a certificate chain, its private key, and the authorities against which certificates of peers are checked (`null`
 * when there is no such file).
 */
export type TlsFiles = { readonly cert: string; readonly key: string; readonly ca: string | null };

/** The contents of the PEM files that {@link TlsFiles} names. */
export type TlsMaterial = { readonly cert: Buffer; readonly key: Buffer; readonly ca?: Buffer };

/** Interval at which TLS files are checked for changes, ms. A renewed certificate is in use after at most this time. */
const POLL_INTERVAL_MS = 5_000;

/**
 * Reads the TLS files. Throws `setup_failed` when a file cannot be read (the message names it) or when certificate and key do not match.
 */
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

/** Reads one PEM file. Throws `setup_failed` when it cannot be read; the message names the file. */
export function readPem(path: string): Buffer {
  try {
    return readFileSync(path);
  } catch (cause) {
    throw new FloeError('setup_failed', `${path} cannot be read: ${asFloeError(cause).message}`, { path }, cause);
  }
}

/**
 * Calls `apply` with the new contents whenever the TLS files change. Returns a function that stops the watching. Changed files may be
 * unusable, for example because only one of them has been replaced so far. Unusable files are reported to `onProblem` once per change, and
 * are read once more at the next check.
 */
export function watchTls(
  files: TlsFiles,
  clock: Clock,
  apply: (material: TlsMaterial) => void,
  onProblem: (error: FloeError) => void,
): () => void {
  let applied = fingerprint(files);
  let reported: string | null = null;
  let cancelTimer = (): void => {};
  const poll = (): void => {
    const current = fingerprint(files);
    if (current === applied) reported = null;
    else {
      try {
        apply(readTls(files));
        applied = current;
        reported = null;
      } catch (thrown) {
        if (reported !== current) onProblem(asFloeError(thrown));
        reported = current;
      }
    }
    cancelTimer = clock.schedule(POLL_INTERVAL_MS, poll);
  };
  cancelTimer = clock.schedule(POLL_INTERVAL_MS, poll);
  return () => cancelTimer();
}

/** Returns a text that changes when a file is written, replaced, linked elsewhere or becomes inaccessible. */
function fingerprint(files: TlsFiles): string {
  const paths = [files.cert, files.key, ...(files.ca === null ? [] : [files.ca])];
  return paths.map(fileState).join(' ');
}

function fileState(path: string): string {
  try {
    const { ino, size, mtimeMs } = statSync(path);
    return `${ino}:${size}:${mtimeMs}`;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? 'unknown';
  }
}
