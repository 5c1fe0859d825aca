import { readFileSync, statSync } from 'node:fs';
import { createSecureContext } from 'node:tls';
import type { Clock } from './clock.ts';
import { asFloeError, FloeError } from './errors.ts';

/** Paths of PEM files: a certificate chain, its key, and the authorities that peer certificates are checked against. */
export type TlsFiles = { readonly cert: string; readonly key: string; readonly ca: string | null };

/** The content of {@link TlsFiles}. */
export type TlsMaterial = { readonly cert: Buffer; readonly key: Buffer; readonly ca?: Buffer };

/** A renewed certificate is in use after this time. Checking often is cheap, because the files are few and small. */
const POLL_INTERVAL_MS = 5_000;

/** Throws `setup_failed` when a file cannot be read (the message names it) or certificate and key do not match. */
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

/** Throws `setup_failed`, naming the file, when it cannot be read. */
export function readPem(path: string): Buffer {
  try {
    return readFileSync(path);
  } catch (cause) {
    throw new FloeError('setup_failed', `${path} cannot be read: ${asFloeError(cause).message}`, { path }, cause);
  }
}

/**
 * Calls `apply` with the new content whenever the files change; returns a function that stops that. Files that cannot be used, for
 * instance because only one of them has been replaced so far, are reported to `onProblem` once for each change and tried again at the
 * next check.
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

/** Changes when a file is written, replaced, linked elsewhere or becomes inaccessible. */
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
