import { mkdir } from 'node:fs/promises';
import { abortAfter, asFloeError, FloeError, MIB, raceAbort, sleep } from '@floe-rl/core';
import type { Runtime, RuntimeDescription, RuntimeProblem, RuntimeProvider, StartRequest } from '../../api/runtime.ts';
import type { BoxEnd } from '../../box/connection.ts';
import { BOX_BYTES, BOX_TASKS } from '../../box/tool-server.ts';
import { LOOPBACK_PROXY } from '../../workspace/environment.ts';
import {
  type BoxPrograms,
  boxMounts,
  boxServerCommand,
  copyBoxPrograms,
  filterPath,
  ROOT_CAPABILITIES,
} from '../boxed/placement.ts';
import { refuseSnapshot } from '../boxed/runtime.ts';
import { type Boxed, startBoxed } from '../boxed/start.ts';
import { DENIED_CALLS } from '../denied-calls.ts';
import { requireImage } from '../host-image.ts';
import { capabilitiesOf } from '../host-limits.ts';
import { type HostBackend, type HostOptions, HostProvider, type SandboxStart } from '../host-provider.ts';
import { INIT } from '../sandbox-runtime.ts';
import { seccompProfile } from '../seccomp.ts';
import { ContainerEngine, type ContainerSpec, type ImageInfo } from './engine-api.ts';
import { ImagePulls } from './image-pull.ts';

/**
 * Paths in the container of its control group's directories. The first is for control groups of version 2, and the others are for version 1.
 */
const CGROUP_DIRECTORIES = ['/sys/fs/cgroup', '/sys/fs/cgroup/memory', '/sys/fs/cgroup/pids'];
/** Labels of a container: the gateway's state directory, the gateway process, and the name of the sandbox. */
const LABELS = { owner: 'floe.owner', instance: 'floe.instance', name: 'floe.sandbox' };
/** The system call filter of every container. */
const PROFILE = seccompProfile(DENIED_CALLS);
/** Maximum time in milliseconds for the calls to the container engine that have no other time limit. */
const ENGINE_LIMIT_MS = 30_000;
/** Number and interval in milliseconds of the checks whether a container has ended after the connection to its box server was lost. */
const MAX_STATE_CHECKS = 20;
const STATE_CHECK_MS = 50;

/** Back ends of local container engines. */
export type ContainerBackend = 'docker' | 'podman';

export type ContainerOptions = HostOptions & {
  readonly backend: ContainerBackend;
  /** Path of the Unix socket of the container engine. */
  readonly engineSocket: string;
  /** Maximum number of images that the engine pulls at the same time; `null` when it pulls none. */
  readonly maxPulls: number | null;
};

/** Returns the provider of sandboxes that run each session in a container of a local container engine. */
export function containerProvider(options: ContainerOptions): RuntimeProvider {
  return new HostProvider(options, new Containers(options));
}

class Containers implements HostBackend<ImageInfo, BoxPrograms> {
  readonly backend: ContainerBackend;
  readonly dirMode = 0o755;
  private readonly options: ContainerOptions;
  private readonly engine: ContainerEngine;
  private readonly pulls: ImagePulls | null;

  constructor(options: ContainerOptions) {
    this.options = options;
    this.backend = options.backend;
    this.engine = new ContainerEngine(options.engineSocket);
    const { maxPulls, clock } = options;
    this.pulls = maxPulls === null ? null : new ImagePulls(this.engine, clock, maxPulls);
  }

  async probe(): Promise<RuntimeProblem | null> {
    try {
      await this.withLimit((signal) => this.engine.version(signal));
      return null;
    } catch (error) {
      const remedy = `start ${this.backend}, and let this user write to ${this.options.engineSocket}`;
      return { problem: asFloeError(error).message, remedy };
    }
  }

  async describe(): Promise<RuntimeDescription> {
    const { isRootless, limits } = await this.withLimit((signal) => this.engine.info(signal));
    const unlimited = Object.entries(limits).filter(([, isEnforced]) => !isEnforced);
    return {
      isolation: `in ${isRootless ? 'rootless ' : ''}containers, with a filter that denies ${DENIED_CALLS.length} system calls`,
      weaknesses: [
        {
          problem: 'runtime.storage_mb is not enforced on containers',
          remedy: 'place the data of the container engine on a file system of its own',
        },
        ...unlimited.map(([field]) => ({
          problem: `the kernel does not enforce runtime.${field} on containers of this engine`,
          remedy: `run ${this.backend} as root, or with control groups of version 2 and a delegated controller`,
        })),
      ],
      capabilities: capabilitiesOf(this.backend, {
        isolation: 'container',
        byKernel: { ...limits, storage_mb: false },
        snapshots: 'copy',
        privileges: 'engine',
      }),
    };
  }

  check({ snapshot }: StartRequest): void {
    refuseSnapshot(snapshot);
  }

  /** Returns the facts about an image, which is pulled when the engine does not have it and may pull it. */
  async imageOf(reference: string | null, signal: AbortSignal): Promise<ImageInfo> {
    const name = requireImage(this.backend, reference);
    let image = await this.engine.image(name, signal);
    if (image === null && this.pulls !== null) {
      await raceAbort(this.pulls.pull(name), signal);
      image = await this.engine.image(name, signal);
    }
    if (image !== null) return image;
    const remedy = `${this.backend} pull ${name}`;
    throw new FloeError('runtime_failed', `runtime.image: this node has no image ${name}; run "${remedy}"`, {
      image: name,
    });
  }

  async prepare(dir: string): Promise<BoxPrograms> {
    await mkdir(dir, { recursive: true, mode: 0o755 });
    await this.removeOrphans();
    return copyBoxPrograms(dir, DENIED_CALLS);
  }

  startIn(start: SandboxStart<ImageInfo, BoxPrograms>, signal: AbortSignal): Promise<Runtime> {
    const { dir, image, request } = start;
    const user = wantedUser(request.spec.user, image.user);
    const boxed: Boxed<string> = {
      ...{ backend: this.backend, isolation: 'container', socketDir: dir, user },
      proxyOrigin: LOOPBACK_PROXY,
      imageVariables: () => image.env,
      cgroupDirectories: CGROUP_DIRECTORIES,
      create: async (signal) => {
        const id = await this.engine.create(`floe-${request.name}`, this.containerSpec(start, user), signal);
        try {
          await this.engine.start(id, signal);
          return id;
        } catch (error) {
          await this.remove(id);
          throw error;
        }
      },
      failure: (id, signal) => this.failure(id, signal),
      explainEnd: (id) => this.explainEnd(id),
      remove: (id) => this.remove(id),
    };
    return startBoxed(start, boxed, signal);
  }

  private containerSpec(
    { dir, image, request, shared: programs }: SandboxStart<ImageInfo, BoxPrograms>,
    user: string | null,
  ): ContainerSpec {
    const { spec } = request;
    const memoryBytes = spec.memory_mb * MIB + BOX_BYTES;
    return {
      Image: image.id,
      User: '0:0',
      Entrypoint: [],
      Cmd: [...INIT, ...boxServerCommand(programs, request, { user })],
      Env: [],
      WorkingDir: '/',
      Hostname: 'floe',
      Labels: {
        [LABELS.owner]: this.options.owner.id,
        [LABELS.instance]: this.options.owner.instance,
        [LABELS.name]: request.name,
      },
      HostConfig: {
        NetworkMode: spec.network === 'host' ? 'default' : 'none',
        Mounts: boxMounts(dir, programs, request).map(([Source, Target]) => ({
          ...{ Type: 'bind', Source, Target },
          ReadOnly: true,
        })),
        Memory: memoryBytes,
        MemorySwap: memoryBytes,
        PidsLimit: spec.max_processes + BOX_TASKS,
        ...(spec.cpus === null ? {} : { NanoCpus: Math.round(spec.cpus * 1e9) }),
        CapDrop: ['ALL'],
        CapAdd: ROOT_CAPABILITIES,
        // Podman takes the path of the filter where Docker takes the filter itself.
        SecurityOpt: ['no-new-privileges', `seccomp=${this.backend === 'podman' ? filterPath(programs) : PROFILE}`],
        LogConfig: { Type: 'json-file', Config: { 'max-size': '64k' } },
      },
    };
  }

  /** Rejects with an error that quotes the container's output when the container ends before its box server is ready. */
  private async failure(id: string, signal: AbortSignal): Promise<never> {
    const code = await this.engine.wait(id, signal);
    const output = await this.engine.logs(id, signal).catch(() => '');
    throw new FloeError('runtime_failed', `the container ended with code ${code} while it was starting: ${output}`, {
      exit_code: code,
    });
  }

  private async remove(id: string): Promise<void> {
    await this.withLimit((signal) => this.engine.remove(id, signal)).catch(() => {});
  }

  private async explainEnd(id: string): Promise<BoxEnd> {
    try {
      return await this.withLimit(async (signal) => {
        // The connection can end shortly before the container does.
        for (let checks = 0; checks < MAX_STATE_CHECKS; checks += 1) {
          const state = await this.engine.state(id, signal);
          if (state === null || !state.isRunning) {
            return { byAgent: true, killedBy: state?.wasOutOfMemory === true ? 'memory' : null };
          }
          await sleep(this.options.clock, STATE_CHECK_MS, signal);
        }
        return { byAgent: true, killedBy: null };
      });
    } catch {
      return { byAgent: false, killedBy: null };
    }
  }

  /** Runs `work` with a signal that aborts when the container engine takes too long. */
  private async withLimit<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const late = () =>
      new FloeError('runtime_unavailable', `the container engine did not respond in ${ENGINE_LIMIT_MS} ms`);
    const limited = abortAfter(this.options.clock, ENGINE_LIMIT_MS, late);
    try {
      return await work(limited.signal);
    } finally {
      limited.release();
    }
  }

  /** Removes the containers of earlier gateways with the same state directory. Their processes ended with these gateways. */
  private async removeOrphans(): Promise<void> {
    const { id, instance } = this.options.owner;
    await this.withLimit(async (signal) => {
      for (const { id: container, labels } of await this.engine.labelled(`${LABELS.owner}=${id}`, signal)) {
        if (labels[LABELS.instance] !== instance) await this.engine.remove(container, signal);
      }
    });
  }
}

/** Returns the user that a task names, or else the user that an image names; `null` for root and when neither names a user. */
function wantedUser(ofTask: string | number | null, ofImage: string): string | null {
  const user = String(ofTask ?? ofImage);
  return ['', '0', 'root', '0:0', 'root:root'].includes(user) ? null : user;
}
