import { randomBytes } from 'node:crypto';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { abortAfter, asFloeError, type Clock, FloeError, MIB, raceAbort, sleep } from '@floe-rl/core';
import {
  type Runtime,
  type RuntimeDescription,
  type RuntimeProblem,
  type RuntimeProvider,
  SNAPSHOT_FILES,
  type StartRequest,
} from '../../api/runtime.ts';
import { type BoxEnd, BoxListener, replyBodyBytes } from '../../box/connection.ts';
import { BOX_BYTES, BOX_TASKS } from '../../box/tool-server.ts';
import type { SandboxUser } from '../../box/users.ts';
import type { Owner } from '../../processes/owner.ts';
import type { Spawner } from '../../spawn/spawner.ts';
import {
  AGENT_HOME,
  baseEnvironment,
  checkEnvironment,
  egressEnvironment,
  PROXY_PORT,
} from '../../workspace/environment.ts';
import {
  askRootVariables,
  BOX_SOCKET,
  type BoxPrograms,
  boxMounts,
  boxServerCommand,
  copyBoxPrograms,
  createPaths,
  mcpCommand,
  ROOT_CAPABILITIES,
  toolServerCommand,
} from '../boxed/placement.ts';
import { BoxRuntime, WORKDIR_ONLY } from '../boxed/runtime.ts';
import { DENIED_CALLS } from '../denied-calls.ts';
import { ContainerEngine, type ContainerSpec, type ImageInfo } from './engine-api.ts';
import { ImagePulls } from './image-pull.ts';
import { seccompProfile } from './seccomp.ts';

/**
 * The first process of a container. It collects orphaned processes, and when it ends, the kernel ends all other processes of the container.
 * Without the `exit`, some shells would replace themselves by the command instead of waiting for it.
 */
const INIT = ['/bin/sh', '-c', '"$@"; exit "$?"', 'floe-init'];
/** Directories in the container of its control group, with the control groups of version 2 and of version 1. */
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

export type ContainerOptions = {
  readonly backend: ContainerBackend;
  /** Path of the Unix socket of the container engine. */
  readonly engineSocket: string;
  readonly spawner: Spawner;
  readonly clock: Clock;
  readonly stateDir: string;
  readonly owner: Owner;
  readonly allowHostNetwork: boolean;
  /** Maximum number of images that the engine pulls at the same time; `null` when it pulls none. */
  readonly maxPulls: number | null;
};

/** Sandbox back end that runs each session in a container of a local container engine. */
export class ContainerProvider implements RuntimeProvider {
  readonly backend: ContainerBackend;
  private readonly options: ContainerOptions;
  private readonly engine: ContainerEngine;
  private readonly pulls: ImagePulls | null;
  private readonly dir: string;
  private programs: Promise<BoxPrograms> | null = null;

  constructor(options: ContainerOptions) {
    this.options = options;
    this.backend = options.backend;
    this.engine = new ContainerEngine(options.engineSocket);
    const { maxPulls, clock } = options;
    this.pulls = maxPulls === null ? null : new ImagePulls(this.engine, clock, maxPulls);
    this.dir = join(options.stateDir, `${options.backend}-${process.pid}`);
  }

  /** Path on the host of the system call filter, for Podman, which takes a path where Docker takes the filter itself. */
  private get profilePath(): string {
    return join(this.dir, '.share', 'seccomp.json');
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
      capabilities: {
        isolation: 'container',
        limits: {
          memory_mb: limits.memory_mb ? 'kernel' : 'checks',
          max_processes: limits.max_processes ? 'kernel' : 'checks',
          cpus: limits.cpus ? 'kernel' : 'none',
          storage_mb: 'none',
          max_output_mb: 'floe',
        },
        networks: ['none', 'proxy', 'allowlist', 'host'],
        snapshots: { method: 'copy', files: SNAPSHOT_FILES[this.backend] },
        privileges: 'engine',
      },
    };
  }

  async start(request: StartRequest, signal: AbortSignal): Promise<Runtime> {
    signal.throwIfAborted();
    const { spec } = request;
    checkEnvironment(spec.env);
    if (request.snapshot != null) throw new FloeError('unsupported', WORKDIR_ONLY);
    if (spec.network === 'host' && !this.options.allowHostNetwork) {
      throw new FloeError('unsupported', 'runtime.network: this node does not allow sandboxes on the host network');
    }
    if (spec.image === null) {
      throw new FloeError('schema_violation', `runtime.image: the ${this.backend} back end needs an image`, {
        path: 'runtime.image',
      });
    }
    const image = await this.imageOf(spec.image, signal);
    if (image === null) {
      const remedy = `${this.backend} pull ${spec.image}`;
      throw new FloeError('runtime_failed', `runtime.image: this node has no image ${spec.image}; run "${remedy}"`, {
        image: spec.image,
      });
    }
    this.programs ??= this.prepare();
    const programs = await this.programs.catch((cause: unknown) => {
      this.programs = null;
      throw new FloeError('runtime_failed', `the sandbox directory cannot be prepared: ${String(cause)}`, {}, cause);
    });
    const dir = join(this.dir, request.name);
    try {
      await mkdir(dir, { recursive: true, mode: 0o755 });
      return await this.startIn(dir, programs, image, request, signal);
    } catch (error) {
      await rm(dir, { recursive: true, force: true });
      signal.throwIfAborted();
      throw asFloeError(error, 'runtime_failed');
    }
  }

  /** Returns the facts about an image, which is pulled when the engine does not have it and may pull it; `null` without the image. */
  private async imageOf(reference: string, signal: AbortSignal): Promise<ImageInfo | null> {
    const image = await this.engine.image(reference, signal);
    if (image !== null || this.pulls === null) return image;
    await raceAbort(this.pulls.pull(reference), signal);
    return this.engine.image(reference, signal);
  }

  private async startIn(
    dir: string,
    programs: BoxPrograms,
    image: ImageInfo,
    request: StartRequest,
    signal: AbortSignal,
  ): Promise<Runtime> {
    const { spec, name } = request;
    const wanted = wantedUser(spec.user, image.user);
    const maxBodyBytes = replyBodyBytes(Math.floor(spec.max_output_mb * MIB));
    const listener = await BoxListener.open(join(dir, BOX_SOCKET), { clock: this.options.clock, maxBodyBytes });
    let id: string | null = null;
    const starting = new AbortController();
    try {
      id = await this.engine.create(`floe-${name}`, this.containerSpec(dir, programs, image, request, wanted), signal);
      await this.engine.start(id, signal);
      const failed = this.failure(id, AbortSignal.any([signal, starting.signal]));
      failed.catch(() => {});
      const connection = await listener.accept(failed, signal);
      const container = id;
      const user = requireUser(wanted, connection.user);
      const paths = await createPaths(connection, request, user);
      const variables = { ...image.env, ...spec.env };
      const { clock, owner, spawner } = this.options;
      return new BoxRuntime({
        ...{
          backend: this.backend,
          isolation: 'container' as const,
          spawner,
          clock,
          owner,
          dir,
          request,
          cgroups: null,
          connection,
          paths,
        },
        proxyOrigin: `http://127.0.0.1:${PROXY_PORT}`,
        environment: {
          ...baseEnvironment(AGENT_HOME),
          ...(user?.name == null ? {} : { USER: user.name, LOGNAME: user.name }),
          ...image.env,
          HOME: AGENT_HOME,
          ...(request.egressSocket == null ? {} : egressEnvironment()),
        },
        user:
          user === null
            ? null
            : {
                owner: { uid: user.uid, gid: user.gid },
                rootVariables: await askRootVariables(connection, user, variables),
                toolServerCommand: (socket) => toolServerCommand(programs, socket),
              },
        mcpCommand: mcpCommand(programs),
        token: randomBytes(9).toString('base64url'),
        cgroupDirectories: CGROUP_DIRECTORIES,
        end: () => this.end(container, dir),
        explainEnd: () => this.explainEnd(container),
      });
    } catch (error) {
      if (id !== null) await this.end(id, dir);
      throw error;
    } finally {
      starting.abort();
      await listener.close();
    }
  }

  private containerSpec(
    dir: string,
    programs: BoxPrograms,
    image: ImageInfo,
    request: StartRequest,
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
        SecurityOpt: ['no-new-privileges', `seccomp=${this.backend === 'podman' ? this.profilePath : PROFILE}`],
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

  private async end(id: string, dir: string): Promise<void> {
    await this.withLimit((signal) => this.engine.remove(id, signal)).catch(() => {});
    await rm(dir, { recursive: true, force: true, maxRetries: 3 }).catch(() => {});
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

  private async prepare(): Promise<BoxPrograms> {
    await mkdir(this.dir, { recursive: true, mode: 0o755 });
    await this.removeOrphans();
    const programs = await copyBoxPrograms(join(this.dir, '.share'));
    await writeFile(this.profilePath, PROFILE);
    return programs;
  }
}

/** Returns the user that a task or else an image names; `null` for root, and where neither names one. */
function wantedUser(ofTask: string | number | null, ofImage: string): string | null {
  const user = String(ofTask ?? ofImage);
  return ['', '0', 'root', '0:0', 'root:root'].includes(user) ? null : user;
}

/** Returns the user that a box server has found; `null` for root. Throws `schema_violation` when it has not found the wanted one. */
function requireUser(wanted: string | null, found: SandboxUser | null): SandboxUser | null {
  if (wanted === null) return null;
  if (found === null) {
    const message = `the image has no user ${wanted}`;
    throw new FloeError('schema_violation', `runtime.user: ${message}`, { path: 'runtime.user', user: wanted });
  }
  return found.uid === 0 ? null : found;
}
