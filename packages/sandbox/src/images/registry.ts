import { createHash } from 'node:crypto';
import { accessSync, constants } from 'node:fs';
import { homedir } from 'node:os';
import {
  type Backoff,
  type Clock,
  type ErrorCode,
  FloeError,
  jitteredBackoffMs,
  runTool,
  Semaphore,
  sleep,
  systemRandom,
  type ToolFailure,
} from '@floe-rl/core';
import { formatReference, type ImageReference } from './reference.ts';

/** Maximum number of tries of a call on a registry that does not answer. */
const TRIES = 4;
const BACKOFF: Backoff = { baseMs: 1_000, maxMs: 30_000 };
/** Maximum time in milliseconds for one call of the registry client. Large images take minutes. */
const CALL_LIMIT_MS = 30 * 60_000;

/**
 * The error codes of failed calls, by the output of the registry client. The first match counts. Registries answer 401 or 403 also for
 * repositories that do not exist.
 */
const FAILURES: readonly { readonly pattern: RegExp; readonly code: ErrorCode }[] = [
  { pattern: /toomanyrequests|too many requests|\b429\b/i, code: 'overloaded' },
  { pattern: /manifest unknown|name unknown|not found|\b404\b/i, code: 'not_found' },
  { pattern: /no space left|read-only file system|permission denied/i, code: 'setup_failed' },
  { pattern: /unauthorized|denied|authentication required|\b40[13]\b/i, code: 'forbidden' },
];

export type RegistryOptions = {
  readonly clock: Clock;
  /**
   * Mirrors of each registry, by the registry's name. A mirror is a host with an optional path. It is tried before the registry, with the
   * repository appended to its path.
   */
  readonly mirrors: Readonly<Record<string, readonly string[]>>;
  /** Hosts that are called without TLS, or whose certificates are not checked. */
  readonly insecure: readonly string[];
  /** File with the credentials of registries, in the format of `docker login`; `null` for the default of the registry client. */
  readonly authFile: string | null;
  /** Maximum number of calls at the same time. */
  readonly maxCalls: number;
};

/** Client of container registries. It runs `skopeo`, because no npm package pulls images from all kinds of registries. */
export class Registry {
  private readonly options: RegistryOptions;
  private readonly calls: Semaphore;

  constructor(options: RegistryOptions) {
    this.options = options;
    this.calls = new Semaphore(options.maxCalls);
  }

  /**
   * Resolves with the digest of an image's manifest, `sha256:` and 64 hexadecimal digits. Rejects with `not_found`, `forbidden`,
   * `overloaded`, `peer_unreachable`, or `setup_failed` when `skopeo` is missing.
   */
  async digestOf(image: ImageReference, signal: AbortSignal): Promise<string> {
    let manifest = '';
    await this.onEachMirror(image, signal, (place, flags) => {
      manifest = '';
      const argv = ['inspect', '--raw', ...flags.map((flag) => `--${flag}`), `docker://${place}`];
      return this.run(argv, signal, (text) => {
        manifest += text;
      });
    });
    return `sha256:${createHash('sha256').update(manifest).digest('hex')}`;
  }

  /**
   * Copies an image into the OCI layout `layoutDir` under the name `image`. Its blobs are stored in `blobsDir`, which several layouts may
   * share. Rejects as {@link digestOf} does.
   */
  async copyToLayout(
    image: ImageReference,
    { layoutDir, blobsDir }: { readonly layoutDir: string; readonly blobsDir: string },
    signal: AbortSignal,
  ): Promise<void> {
    await this.onEachMirror(image, signal, (place, flags) =>
      this.run(
        [
          'copy',
          '--quiet',
          ...flags.map((flag) => `--src-${flag}`),
          ...['--dest-shared-blob-dir', blobsDir],
          `docker://${place}`,
          `oci:${layoutDir}:image`,
        ],
        signal,
      ),
    );
  }

  /** Calls `call` for each mirror of the image's registry, and then for the registry itself, until one succeeds. */
  private async onEachMirror(
    image: ImageReference,
    signal: AbortSignal,
    call: (place: string, flags: readonly string[]) => Promise<ToolFailure | null>,
  ): Promise<void> {
    const { mirrors, insecure, authFile } = this.options;
    const places = [...(mirrors[image.registry] ?? []), image.registry];
    let failure: FloeError | null = null;
    for (const place of places) {
      const host = place.split('/')[0] ?? place;
      const flags = [
        ...(insecure.includes(host) ? ['tls-verify=false'] : []),
        ...(authFile === null ? [] : [`authfile=${authFile}`]),
      ];
      const at = formatReference({ ...image, registry: place });
      failure = await this.retried(at, signal, () => call(at, flags));
      if (failure === null) return;
    }
    throw failure ?? new FloeError('internal', 'an image has no registry');
  }

  /**
   * Calls `call` until it succeeds, fails with an error that another try cannot solve, or has been tried {@link TRIES} times. Resolves with
   * the last error, if any.
   */
  private async retried(
    place: string,
    signal: AbortSignal,
    call: () => Promise<ToolFailure | null>,
  ): Promise<FloeError | null> {
    for (let failures = 1; ; failures++) {
      const release = await this.calls.acquire(signal);
      const failure = await call().finally(release);
      if (failure === null) return null;
      const error = errorOf(place, failure);
      // When the registry limits the rate of calls, the registry client itself repeats a call after the pause that the registry demands.
      if (error.code !== 'peer_unreachable' || failures === TRIES) return error;
      await sleep(this.options.clock, jitteredBackoffMs(BACKOFF, failures, systemRandom), signal);
    }
  }

  private run(
    args: readonly string[],
    signal: AbortSignal,
    onOutput?: (text: string) => void,
  ): Promise<ToolFailure | null> {
    const options = { cwd: '/', env: clientEnv(), timeoutMs: CALL_LIMIT_MS, signal };
    return runTool(['skopeo', ...args], onOutput === undefined ? options : { ...options, onOutput });
  }
}

/**
 * Returns the environment of the registry client. Without a runtime directory of the user, the client looks for credentials below
 * `/run/containers`. It fails when that directory belongs to root, as with Podman. The returned variables make it look in the home directory.
 */
function clientEnv(): NodeJS.ProcessEnv {
  if (process.env.XDG_RUNTIME_DIR !== undefined) return process.env;
  try {
    accessSync('/run/containers', constants.X_OK);
    return process.env;
  } catch (error) {
    const isClosed = (error as NodeJS.ErrnoException).code === 'EACCES';
    return isClosed ? { ...process.env, XDG_RUNTIME_DIR: homedir() } : process.env;
  }
}

function errorOf(place: string, { missing, reason, cause }: ToolFailure): FloeError {
  if (missing) {
    const remedy = 'apt-get install --no-install-recommends skopeo';
    return new FloeError(
      'setup_failed',
      `images of registries need skopeo, which is not installed: ${remedy}`,
      {},
      cause,
    );
  }
  const code = FAILURES.find(({ pattern }) => pattern.test(reason))?.code ?? 'peer_unreachable';
  return new FloeError(code, `the image ${place} cannot be pulled: ${reason}`, { image: place }, cause);
}
