import { mkdir, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { asFloeError, type Clock, FloeError, removeTree } from '@floe-rl/core';
import type { RuntimeSpec } from '@floe-rl/core/schema';
import type {
  ExecResult,
  Runtime,
  RuntimeDescription,
  RuntimeProblem,
  RuntimeProvider,
  StartRequest,
} from '../api/runtime.ts';
import type { Owner } from '../processes/owner.ts';
import { isRunning } from '../processes/process-table.ts';
import { labelled, type Spawner } from '../spawn/spawner.ts';
import { checkEnvironment } from '../workspace/environment.ts';
import { refuseUser } from './users.ts';

/*
 * What all back ends that isolate sandboxes on this machine have in common. A back end adds a {@link HostBackend}: how it finds an image and
 * starts one sandbox.
 */

export type HostOptions = {
  readonly spawner: Spawner;
  readonly clock: Clock;
  /** Directory in which each sandbox has a directory of its own until it is stopped. */
  readonly stateDir: string;
  readonly owner: Owner;
  /** Whether tasks may request `network: host`. */
  readonly allowHostNetwork: boolean;
};

/** What a back end gets to start one sandbox. */
export type SandboxStart<Image, Shared> = Pick<HostOptions, 'clock' | 'owner'> & {
  /** The sandbox's directory on the host. It exists and is empty, and is removed when the start fails. */
  readonly dir: string;
  readonly request: StartRequest;
  readonly image: Image;
  readonly shared: Shared;
  /** Starts processes that have the label of the sandbox. */
  readonly spawner: Spawner;
};

/** What differs between the back ends. `Image` is a found image, and `Shared` describes the files that all sandboxes share. */
export interface HostBackend<Image, Shared> extends Pick<RuntimeProvider, 'backend' | 'describe'> {
  /** Permission bits of the directory of each sandbox. */
  readonly dirMode: number;
  /** Throws for a request that the back end or this machine cannot satisfy. */
  check(request: StartRequest): Promise<void> | void;
  /** Finds the image that a task names; `null` when it names none. */
  imageOf(reference: string | null, signal: AbortSignal): Promise<Image>;
  /** Makes the files that all sandboxes share, in the directory of this process. It is called until it has succeeded once. */
  prepare(dir: string): Promise<Shared>;
  /** Starts a sandbox. Ends all its processes before it rejects. */
  startIn(start: SandboxStart<Image, Shared>, signal: AbortSignal): Promise<Runtime>;
  /** Checks whether the back end works. `dir` is the directory of this process, which may not exist. */
  probe(provider: Pick<RuntimeProvider, 'start'>, dir: string): Promise<RuntimeProblem | null>;
}

/** The provider of a back end of this machine. */
export class HostProvider<Image, Shared> implements RuntimeProvider {
  readonly backend: RuntimeProvider['backend'];
  private readonly options: HostOptions;
  private readonly of: HostBackend<Image, Shared>;
  private readonly dir: string;
  private shared: Promise<Shared> | null = null;

  constructor(options: HostOptions, of: HostBackend<Image, Shared>) {
    this.options = options;
    this.of = of;
    this.backend = of.backend;
    this.dir = join(options.stateDir, `${of.backend}-${process.pid}`);
  }

  probe(): Promise<RuntimeProblem | null> {
    return this.of.probe(this, this.dir);
  }

  describe(): Promise<RuntimeDescription> {
    return this.of.describe();
  }

  async start(request: StartRequest, signal: AbortSignal): Promise<Runtime> {
    signal.throwIfAborted();
    const { spec, name } = request;
    refuseUser(this.backend, spec);
    checkEnvironment(spec.env);
    if (spec.network === 'host' && !this.options.allowHostNetwork) {
      throw new FloeError('unsupported', 'runtime.network: this node does not allow sandboxes on the host network');
    }
    await this.of.check(request);
    const image = await this.of.imageOf(spec.image, signal);
    this.shared ??= this.prepare();
    const shared = await this.shared.catch((cause: unknown) => {
      this.shared = null;
      throw new FloeError('runtime_failed', `the sandbox directory cannot be prepared: ${String(cause)}`, {}, cause);
    });
    const { clock, owner } = this.options;
    const spawner = labelled(this.options.spawner, owner, name);
    const dir = join(this.dir, name);
    try {
      await mkdir(dir, { recursive: true, mode: this.of.dirMode });
      return await this.of.startIn({ clock, owner, spawner, dir, request, image, shared }, signal);
    } catch (error) {
      await removeTree(dir);
      signal.throwIfAborted();
      throw asFloeError(error, 'runtime_failed');
    }
  }

  private async prepare(): Promise<Shared> {
    await mkdir(this.options.stateDir, { recursive: true });
    await this.removeDeadGatewayDirs();
    return this.of.prepare(this.dir);
  }

  /** Removes the sandbox directories of gateway processes that have ended. The sandboxes in them ended with the gateway process. */
  private async removeDeadGatewayDirs(): Promise<void> {
    const { stateDir } = this.options;
    for (const name of await readdir(stateDir)) {
      const [, backend, pid] = /^([a-z]+)-(\d+)$/.exec(name) ?? [];
      if (backend !== this.backend || Number(pid) === process.pid || isRunning(Number(pid))) continue;
      await removeTree(join(stateDir, name));
    }
  }
}

let probeCount = 0;

/** Starts a sandbox, runs a command in it that does nothing, and stops the sandbox. Rejects like the start and the command. */
export async function tryCommand(provider: Pick<RuntimeProvider, 'start'>, spec: RuntimeSpec): Promise<ExecResult> {
  const never = new AbortController().signal;
  const name = `probe-${process.pid}-${probeCount++}`;
  const runtime = await provider.start({ name, spec, proxy: null, readOnlyMounts: [] }, never);
  try {
    return await runtime.exec({ command: ['/bin/sh', '-c', 'exit 0'] }, never);
  } finally {
    await runtime.stop();
  }
}
