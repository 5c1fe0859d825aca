import { createHash } from 'node:crypto';
import { mkdir, readdir, realpath, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { asFloeError, type Clock, FloeError } from '@floe-rl/core';
import { runtimeSpecSchema } from '@floe-rl/core/schema';
import {
  type Runtime,
  type RuntimeDescription,
  type RuntimeProblem,
  type RuntimeProvider,
  SNAPSHOT_FILES,
  type StartRequest,
} from '../../api/runtime.ts';
import type { NodeImages } from '../../images/node-images.ts';
import type { Cgroups } from '../../processes/cgroup.ts';
import type { Owner } from '../../processes/owner.ts';
import { isRunning } from '../../processes/process-table.ts';
import { labelled, type Spawner } from '../../spawn/spawner.ts';
import { checkEnvironment, missingProgram } from '../../workspace/environment.ts';
import { type Architecture, DENIED_CALLS } from '../denied-calls.ts';
import { refuseUser } from '../users.ts';
import { checkWorkdir } from './command.ts';
import { diagnose, NO_FILTER, unenforcedLimits } from './diagnosis.ts';
import { deriveHolder, startHolder } from './holder.ts';
import { describeHost, type SandboxHost, snapshotMethod, writeImageAccounts } from './host.ts';
import { BubblewrapRuntime, usableSnapshot } from './runtime.ts';
import { architectureOf } from './syscall-filter.ts';

export type BubblewrapOptions = {
  readonly spawner: Spawner;
  readonly clock: Clock;
  /** Directory in which each sandbox has a directory of its own until it is stopped. */
  readonly stateDir: string;
  /** Whether tasks may request `network: host`. */
  readonly allowHostNetwork: boolean;
  readonly owner: Owner;
  /** Images of registries; `null` when only directories can be images. */
  readonly images: NodeImages | null;
  /** Resolves with an object that creates control groups; `null` when this process may not create any. */
  readonly cgroups: () => Promise<Cgroups | null>;
};

const PROGRAMS = ['bwrap', 'unshare', 'nsenter', 'mount', 'tar', 'find', 'setpriv'];

/**
 * Lowest user id on the host for sandboxes of a gateway with root privileges. It is above the ids that distributions, systemd and container
 * engines assign, which end at 1879048191.
 */
const FIRST_SANDBOX_UID = 1_900_000_000;
/**
 * Size of the range of user ids from which a sandbox's id is chosen by a hash of its name. Two sessions that get the same id by chance are
 * still separated by their namespaces.
 */
const SANDBOX_UID_COUNT = 100_000_000;

/**
 * Sandbox back end that isolates sessions with unprivileged Linux namespaces, created by bubblewrap; see docs/runtimes.md. floe calls
 * bubblewrap directly, because no npm package wraps it.
 */
export class BubblewrapProvider implements RuntimeProvider {
  readonly backend = 'bubblewrap';
  private readonly options: BubblewrapOptions;
  private readonly dir: string;
  private host: Promise<SandboxHost> | null = null;

  constructor(options: BubblewrapOptions) {
    this.options = options;
    this.dir = join(options.stateDir, `bubblewrap-${process.pid}`);
  }

  async probe(): Promise<RuntimeProblem | null> {
    const missing = process.platform === 'linux' ? await missingProgram(PROGRAMS) : null;
    if (missing !== null || process.platform !== 'linux') return diagnose({ missing, failure: null });
    const spec = runtimeSpecSchema.parse({ storage_mb: 16, memory_mb: 64 });
    const request = { name: `probe-${process.pid}-${probeCount++}`, spec, proxy: null, readOnlyMounts: [] };
    const never = new AbortController().signal;
    let runtime: Runtime | null = null;
    try {
      runtime = await this.start(request, never);
      const { exitCode, stderr } = await runtime.exec({ command: ['/bin/sh', '-c', 'exit 0'] }, never);
      return exitCode === 0 ? null : await diagnose({ missing: null, failure: stderr });
    } catch (error) {
      return await diagnose({ missing: null, failure: asFloeError(error).message });
    } finally {
      await runtime?.stop();
    }
  }

  async describe(): Promise<RuntimeDescription> {
    const controllers = (await this.options.cgroups())?.controllers ?? new Set();
    const weakness = unenforcedLimits(controllers);
    return {
      isolation: `with a filter that denies ${DENIED_CALLS.length} system calls`,
      weaknesses: weakness === null ? [] : [weakness],
      capabilities: {
        isolation: 'namespaces',
        limits: {
          memory_mb: controllers.has('memory') ? 'kernel' : 'checks',
          // RLIMIT_NPROC counts per user namespace.
          max_processes: 'kernel',
          cpus: controllers.has('cpu') ? 'kernel' : 'none',
          storage_mb: 'kernel',
          max_output_mb: 'floe',
        },
        networks: ['none', 'proxy', 'allowlist', 'host'],
        snapshots: { method: snapshotMethod(), files: SNAPSHOT_FILES[this.backend] },
        privileges: 'any',
      },
    };
  }

  async start(request: StartRequest, signal: AbortSignal): Promise<Runtime> {
    signal.throwIfAborted();
    const { spec } = request;
    refuseUser(this.backend, spec);
    if (process.platform !== 'linux') throw new FloeError('runtime_unavailable', 'bubblewrap needs Linux');
    if (spec.network === 'host' && !this.options.allowHostNetwork) {
      throw new FloeError('unsupported', 'runtime.network: this node does not allow sandboxes on the host network');
    }
    const architecture = architectureOf(process.arch);
    if (architecture === null) throw new FloeError('runtime_unavailable', NO_FILTER);
    checkWorkdir(spec);
    checkEnvironment(spec.env);
    this.host ??= this.prepare(architecture);
    const host = await this.host.catch((cause: unknown) => {
      this.host = null;
      throw new FloeError('runtime_failed', `the sandbox directory cannot be prepared: ${String(cause)}`, {}, cause);
    });
    const image = spec.image === null ? null : await this.imageOf(spec.image, signal);
    const dir = join(this.dir, request.name);
    try {
      await mkdir(join(dir, 'root'), { recursive: true, mode: 0o700 });
      if (image !== null) {
        await mkdir(join(dir, 'accounts'));
        await writeImageAccounts(image.path, join(dir, 'accounts'));
      }
      return await this.startIn(dir, host, request, image, signal);
    } catch (error) {
      await rm(dir, { recursive: true, force: true });
      signal.throwIfAborted();
      throw asFloeError(error, 'runtime_failed');
    }
  }

  private async startIn(
    dir: string,
    host: SandboxHost,
    request: StartRequest,
    image: Image | null,
    signal: AbortSignal,
  ): Promise<Runtime> {
    const { clock, owner } = this.options;
    const spawner = labelled(this.options.spawner, owner, request.name);
    const cgroups = await this.options.cgroups();
    const imagePath = image?.path ?? null;
    const from = request.snapshot == null ? null : usableSnapshot(request.snapshot, imagePath);
    const uid = from?.uid ?? image?.uid ?? uidOf(request.name);
    const holderRequest = { spawner, dir, host, request, imagePath, uid };
    const holder = await (from === null
      ? startHolder(holderRequest, signal)
      : deriveHolder(from.holder, holderRequest, signal));
    const runtime = new BubblewrapRuntime({
      spawner,
      clock,
      owner,
      dir,
      host,
      request,
      holder,
      imagePath,
      uid,
      cgroups,
      imageEnv: image?.env ?? {},
    });
    if (image === null || from !== null) return runtime;
    try {
      // Creates the working directory, which shows also whether programs run in the image.
      const command = ['/bin/sh', '-c', 'mkdir -p "$1" && cd "$1"', 'sh', request.spec.workdir];
      const { exitCode, stderr } = await runtime.exec({ command, cwd: '/' }, signal);
      if (exitCode === 0) return runtime;
      throw new FloeError('runtime_failed', `runtime.image: ${request.spec.image} cannot run a command: ${stderr}`);
    } catch (error) {
      await runtime.stop();
      throw error;
    }
  }

  private async imageOf(image: string, signal: AbortSignal): Promise<Image> {
    if (image.startsWith('/')) return directoryImage(image);
    if (this.options.images === null) {
      throw new FloeError(
        'unsupported',
        `runtime.image: ${image} is not an absolute path, and this node has no image store`,
      );
    }
    const { path, env } = await this.options.images.rootFileSystem(image, signal);
    return { ...(await directoryImage(path)), env };
  }

  private async prepare(architecture: Architecture): Promise<SandboxHost> {
    await mkdir(this.options.stateDir, { recursive: true });
    await removeDeadGatewayDirs(this.options.stateDir);
    await mkdir(this.dir, { recursive: true, mode: 0o700 });
    return describeHost(join(this.dir, '.share'), architecture);
  }
}

type Image = {
  readonly path: string;
  readonly uid: number;
  readonly env: Readonly<Record<string, string>>;
};

let probeCount = 0;

async function directoryImage(image: string): Promise<Image> {
  const info = await stat(image).catch(() => null);
  if (!info?.isDirectory()) {
    throw new FloeError('runtime_failed', `runtime.image: there is no directory ${image} on this node`, { image });
  }
  // The sandbox runs as the owner of the image's files, because only the owner may overwrite them.
  return { path: await realpath(image), uid: info.uid, env: {} };
}

function uidOf(name: string): number {
  return FIRST_SANDBOX_UID + (createHash('sha256').update(name).digest().readUInt32LE(0) % SANDBOX_UID_COUNT);
}

/** Removes the sandbox directories of gateway processes that have ended. The sandboxes in them ended with the gateway process. */
async function removeDeadGatewayDirs(stateDir: string): Promise<void> {
  for (const name of await readdir(stateDir)) {
    const pid = Number(/^bubblewrap-(\d+)$/.exec(name)?.[1]);
    if (Number.isNaN(pid) || pid === process.pid || isRunning(pid)) continue;
    await rm(join(stateDir, name), { recursive: true, force: true });
  }
}
