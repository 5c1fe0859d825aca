import { createHash } from 'node:crypto';
import { mkdir, realpath, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { asFloeError, FloeError } from '@floe-rl/core';
import { runtimeSpecSchema } from '@floe-rl/core/schema';
import type { Runtime, RuntimeDescription, RuntimeProblem, RuntimeProvider, StartRequest } from '../../api/runtime.ts';
import type { NodeImages } from '../../images/node-images.ts';
import type { Cgroups } from '../../processes/cgroup.ts';
import { missingProgram } from '../../workspace/environment.ts';
import { type Architecture, DENIED_CALLS } from '../denied-calls.ts';
import { type HostImage, hostImage } from '../host-image.ts';
import { capabilitiesOf, unenforcedLimits } from '../host-limits.ts';
import { type HostBackend, type HostOptions, HostProvider, type SandboxStart, tryCommand } from '../host-provider.ts';
import { checkWorkdir } from './command.ts';
import { diagnose, NO_FILTER } from './diagnosis.ts';
import { deriveHolder, startHolder } from './holder.ts';
import { describeHost, type SandboxHost, snapshotMethod, writeImageAccounts } from './host.ts';
import { BubblewrapRuntime, usableSnapshot } from './runtime.ts';
import { architectureOf } from './syscall-filter.ts';

export type BubblewrapOptions = HostOptions & {
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
 * Returns the provider of sandboxes that isolate sessions with unprivileged Linux namespaces, created by bubblewrap; see docs/runtimes.md. floe
 * calls bubblewrap directly, because no npm package wraps it.
 */
export function bubblewrapProvider(options: BubblewrapOptions): RuntimeProvider {
  return new HostProvider(options, new Bubblewrap(options));
}

class Bubblewrap implements HostBackend<Image | null, SandboxHost> {
  readonly backend = 'bubblewrap';
  readonly dirMode = 0o700;
  private readonly options: BubblewrapOptions;

  constructor(options: BubblewrapOptions) {
    this.options = options;
  }

  async probe(provider: Pick<RuntimeProvider, 'start'>): Promise<RuntimeProblem | null> {
    const missing = process.platform === 'linux' ? await missingProgram(PROGRAMS) : null;
    if (missing !== null || process.platform !== 'linux') return diagnose({ missing, failure: null });
    try {
      const { exitCode, stderr } = await tryCommand(
        provider,
        runtimeSpecSchema.parse({ storage_mb: 16, memory_mb: 64 }),
      );
      return exitCode === 0 ? null : await diagnose({ missing: null, failure: stderr });
    } catch (error) {
      return await diagnose({ missing: null, failure: asFloeError(error).message });
    }
  }

  async describe(): Promise<RuntimeDescription> {
    const controllers = (await this.options.cgroups())?.controllers ?? new Set();
    const weakness = unenforcedLimits(controllers);
    return {
      isolation: `with a filter that denies ${DENIED_CALLS.length} system calls`,
      weaknesses: weakness === null ? [] : [weakness],
      capabilities: capabilitiesOf(this.backend, {
        isolation: 'namespaces',
        byKernel: {
          memory_mb: controllers.has('memory'),
          // RLIMIT_NPROC counts per user namespace.
          max_processes: true,
          cpus: controllers.has('cpu'),
          storage_mb: true,
        },
        snapshots: snapshotMethod(),
        privileges: 'any',
      }),
    };
  }

  check({ spec }: StartRequest): void {
    if (process.platform !== 'linux') throw new FloeError('runtime_unavailable', 'bubblewrap needs Linux');
    requireArchitecture();
    checkWorkdir(spec);
  }

  async imageOf(reference: string | null, signal: AbortSignal): Promise<Image | null> {
    if (reference === null) return null;
    const image = await hostImage(this.options.images, reference, signal);
    const info = await stat(image.path).catch(() => null);
    if (!info?.isDirectory()) {
      throw new FloeError('runtime_failed', `runtime.image: there is no directory ${image.path} on this node`, {
        image: image.path,
      });
    }
    return { path: await realpath(image.path), env: image.env, uid: info.uid };
  }

  async prepare(dir: string): Promise<SandboxHost> {
    await mkdir(dir, { recursive: true, mode: 0o700 });
    return describeHost(join(dir, '.share'), requireArchitecture());
  }

  async startIn(
    { clock, owner, spawner, dir, request, image, shared: host }: SandboxStart<Image | null, SandboxHost>,
    signal: AbortSignal,
  ): Promise<Runtime> {
    await mkdir(join(dir, 'root'), { mode: 0o700 });
    if (image !== null) {
      await mkdir(join(dir, 'accounts'));
      await writeImageAccounts(image.path, join(dir, 'accounts'));
    }
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
}

/** An image, with the user that owns its files. The sandbox runs as this user, because only the owner may overwrite the files. */
type Image = HostImage & { readonly uid: number };

function requireArchitecture(): Architecture {
  const architecture = architectureOf(process.arch);
  if (architecture === null) throw new FloeError('runtime_unavailable', NO_FILTER);
  return architecture;
}

function uidOf(name: string): number {
  return FIRST_SANDBOX_UID + (createHash('sha256').update(name).digest().readUInt32LE(0) % SANDBOX_UID_COUNT);
}
