import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdir, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { asFloeError, type Clock, FloeError, MIB, removeTree, sleep } from '@floe-rl/core';
import { runtimeSpecSchema } from '@floe-rl/core/schema';
import {
  type Runtime,
  type RuntimeDescription,
  type RuntimeProblem,
  type RuntimeProvider,
  SNAPSHOT_FILES,
  type StartRequest,
} from '../../api/runtime.ts';
import { type BoxConnection, type BoxEnd, BoxListener, replyBodyBytes } from '../../box/connection.ts';
import { BOX_BYTES, BOX_TASKS } from '../../box/tool-server.ts';
import type { NodeImages } from '../../images/node-images.ts';
import type { Cgroup, Cgroups } from '../../processes/cgroup.ts';
import type { Owner } from '../../processes/owner.ts';
import { isRunning } from '../../processes/process-table.ts';
import { labelled, type SpawnedProcess, type Spawner } from '../../spawn/spawner.ts';
import {
  AGENT_HOME,
  baseEnvironment,
  checkEnvironment,
  egressEnvironment,
  HOST_PATH,
  PROXY_PORT,
} from '../../workspace/environment.ts';
import {
  BOX_SOCKET,
  type BoxPrograms,
  boxMounts,
  boxServerCommand,
  copyBoxPrograms,
  createPaths,
  mcpCommand,
} from '../boxed/placement.ts';
import { BoxRuntime, WORKDIR_ONLY } from '../boxed/runtime.ts';
import { unenforcedLimits } from '../bubblewrap/diagnosis.ts';
import { countsProcessesPerNamespace } from '../bubblewrap/host.ts';
import { seccompProfile } from '../container/seccomp.ts';
import { copyProgram } from '../sandbox-programs.ts';
import { refuseUser } from '../users.ts';
import { APPTAINER_DENIED_CALLS, apptainerArgs } from './command.ts';

const run = promisify(execFile);

/** Number of tasks of Apptainer itself in the control group of a sandbox. */
const APPTAINER_TASKS = 64;
/**
 * Number of tasks by which RLIMIT_NPROC of a sandbox is higher than its task limit. With this margin the checks detect that the limit is
 * exceeded before a fork fails.
 */
const SPARE_TASKS = 8;
/**
 * Shell script that runs a command with an RLIMIT_NPROC, which holds for its sandbox as a whole, so that a fork bomb cannot outrun the
 * checks. Arguments: the number of tasks, the command.
 */
const LIMIT_SCRIPT = 'ulimit -p "$1" 2>/dev/null || ulimit -u "$1" 2>/dev/null; shift; exec "$@"';
/** Maximum time in milliseconds in which a sandbox ends by itself before it is killed. */
const END_MS = 1_000;
/** Maximum number of characters of the output of a sandbox that did not start, taken from its end, that the error message quotes. */
const OUTPUT_CHARS = 1_000;
/** Environment variables of the box server that do not come from the image. */
const NOT_OF_IMAGE =
  /^(APPTAINER|SINGULARITY)_|^(HOME|LD_LIBRARY_PATH|OLDPWD|PROMPT_COMMAND|PS1|PWD|SHLVL|TERM|USER|_)$/;

/** Shell script that joins control groups and then replaces itself by a command. Arguments: their number, their directories, the command. */
const JOIN_SCRIPT = `set -e
count=$1; shift
while [ "$count" -gt 0 ]; do
  echo 0 >"$1/cgroup.procs"
  count=$((count - 1)); shift
done
exec "$@"`;

export type ApptainerOptions = {
  /** The program Apptainer: a path, or a name on {@link HOST_PATH}. */
  readonly command: string;
  readonly spawner: Spawner;
  readonly clock: Clock;
  readonly stateDir: string;
  readonly owner: Owner;
  readonly allowHostNetwork: boolean;
  /** Images of registries; `null` when only directories and files can be images. */
  readonly images: NodeImages | null;
  /** Resolves with an object that creates control groups; `null` when this process may not create any. */
  readonly cgroups: () => Promise<Cgroups | null>;
};

type Image = { readonly path: string; readonly env: Readonly<Record<string, string>> };

/** A running sandbox on the host. */
type Sandbox = { readonly process: SpawnedProcess; readonly cgroup: Cgroup | null; readonly dir: string };

/** Sandbox back end that runs each session in one process of Apptainer, without root privileges. */
export class ApptainerProvider implements RuntimeProvider {
  readonly backend = 'apptainer';
  private readonly options: ApptainerOptions;
  private readonly dir: string;
  private programs: Promise<BoxPrograms> | null = null;
  private probeCount = 0;

  constructor(options: ApptainerOptions) {
    this.options = options;
    this.dir = join(options.stateDir, `apptainer-${process.pid}`);
  }

  async probe(): Promise<RuntimeProblem | null> {
    if (await isRootOfHost()) return ROOT_PROBLEM;
    const { command } = this.options;
    const version = await run(command, ['--version'], { env: { PATH: HOST_PATH, HOME: '/' } }).catch(() => null);
    if (version === null) {
      return { problem: `${command} cannot be run`, remedy: 'install Apptainer, or set --apptainer-command' };
    }
    const dir = join(this.dir, `.probe-${this.probeCount++}`);
    const never = new AbortController().signal;
    let runtime: Runtime | null = null;
    try {
      await makeProbeImage(join(dir, 'image'));
      const spec = runtimeSpecSchema.parse({ image: join(dir, 'image'), memory_mb: 64 });
      const name = `probe-${this.probeCount}`;
      runtime = await this.start({ name, spec, proxy: null, readOnlyMounts: [] }, never);
      await runtime.exec({ command: ['/bin/sh', '-c', 'exit 0'] }, never);
      return null;
    } catch (error) {
      const problem = `a sandbox of ${version.stdout.trim()} cannot be started: ${asFloeError(error).message}`;
      return { problem, remedy: 'allow user namespaces for this user, as `apptainer exec --userns` needs' };
    } finally {
      await runtime?.stop();
      await rm(dir, { recursive: true, force: true });
    }
  }

  async describe(): Promise<RuntimeDescription> {
    const controllers = (await this.options.cgroups())?.controllers ?? new Set();
    const weakness = unenforcedLimits(controllers);
    return {
      isolation: `in user namespaces, with a filter that denies ${APPTAINER_DENIED_CALLS.length} system calls`,
      weaknesses: [
        {
          problem: 'runtime.storage_mb is not enforced on Apptainer sandboxes',
          remedy: 'place the state directory of the gateway on a file system of its own',
        },
        {
          problem: 'processes in Apptainer sandboxes can create namespaces, because clone3 cannot be denied',
          remedy: 'use bubblewrap for agents that attack the kernel',
        },
        ...(weakness === null ? [] : [weakness]),
      ],
      capabilities: {
        isolation: 'namespaces',
        limits: {
          memory_mb: controllers.has('memory') ? 'kernel' : 'checks',
          max_processes: controllers.has('pids') ? 'kernel' : 'checks',
          cpus: controllers.has('cpu') ? 'kernel' : 'none',
          storage_mb: 'none',
          max_output_mb: 'floe',
        },
        networks: ['none', 'proxy', 'allowlist', 'host'],
        snapshots: { method: 'copy', files: SNAPSHOT_FILES[this.backend] },
        privileges: 'not_root',
      },
    };
  }

  async start(request: StartRequest, signal: AbortSignal): Promise<Runtime> {
    signal.throwIfAborted();
    const { spec } = request;
    refuseUser(this.backend, spec);
    checkEnvironment(spec.env);
    if (request.snapshot != null) throw new FloeError('unsupported', WORKDIR_ONLY);
    if (spec.network === 'host' && !this.options.allowHostNetwork) {
      throw new FloeError('unsupported', 'runtime.network: this node does not allow sandboxes on the host network');
    }
    if (await isRootOfHost()) throw new FloeError('runtime_unavailable', ROOT_PROBLEM.problem);
    const image = await this.imageOf(spec.image, signal);
    this.programs ??= this.prepare();
    const programs = await this.programs.catch((cause: unknown) => {
      this.programs = null;
      throw new FloeError('runtime_failed', `the sandbox directory cannot be prepared: ${String(cause)}`, {}, cause);
    });
    const dir = join(this.dir, request.name);
    try {
      for (const name of ['sockets', 'overlay', 'tmp']) await mkdir(join(dir, name), { recursive: true, mode: 0o700 });
      return await this.startIn(dir, programs, image, request, signal);
    } catch (error) {
      await removeTree(dir);
      signal.throwIfAborted();
      throw asFloeError(error, 'runtime_failed');
    }
  }

  private async startIn(
    dir: string,
    programs: BoxPrograms,
    image: Image,
    request: StartRequest,
    signal: AbortSignal,
  ): Promise<Runtime> {
    const { spec } = request;
    const { clock, owner } = this.options;
    const spawner = labelled(this.options.spawner, owner, request.name);
    const maxBodyBytes = replyBodyBytes(Math.floor(spec.max_output_mb * MIB));
    const listener = await BoxListener.open(join(dir, 'sockets', BOX_SOCKET), { clock, maxBodyBytes });
    let sandbox: Sandbox | null = null;
    try {
      sandbox = await this.spawn(dir, programs, image, request, spawner);
      const started = sandbox;
      const failed = earlyEnd(started.process);
      failed.catch(() => {});
      const connection = await listener.accept(failed, signal);
      const paths = await createPaths(connection, request);
      return new BoxRuntime({
        ...{
          backend: this.backend,
          isolation: 'namespaces' as const,
          spawner,
          clock,
          owner,
          dir,
          request,
          cgroups: null,
          connection,
          paths,
        },
        proxyOrigin:
          spec.network === 'host' && request.proxy !== null
            ? request.proxy.tcpOrigin
            : `http://127.0.0.1:${PROXY_PORT}`,
        environment: {
          ...baseEnvironment(AGENT_HOME),
          ...imageVariables(connection.environment),
          ...image.env,
          HOME: AGENT_HOME,
          ...(request.egressSocket == null ? {} : egressEnvironment()),
        },
        user: null,
        mcpCommand: mcpCommand(programs),
        token: randomBytes(9).toString('base64url'),
        cgroupDirectories: [],
        end: () => this.end(started, connection),
        explainEnd: () => explainEnd(started),
      });
    } catch (error) {
      if (sandbox !== null) await this.end(sandbox);
      throw error;
    } finally {
      await listener.close();
    }
  }

  private async spawn(
    dir: string,
    programs: BoxPrograms,
    image: Image,
    request: StartRequest,
    spawner: Spawner,
  ): Promise<Sandbox> {
    const { spec } = request;
    const taskCount = spec.max_processes + BOX_TASKS + APPTAINER_TASKS;
    const limiting = ['/bin/sh', '-c', LIMIT_SCRIPT, 'floe-limit', String(taskCount + SPARE_TASKS)];
    const sandboxed = { ...request, proxy: spec.network === 'host' ? null : request.proxy };
    const args = apptainerArgs({
      program: this.options.command,
      image: image.path,
      overlay: join(dir, 'overlay'),
      seccomp: this.profilePath,
      mounts: boxMounts(join(dir, 'sockets'), programs, sandboxed),
      hasNetwork: spec.network === 'host',
      argv: [
        ...(countsProcessesPerNamespace() ? limiting : []),
        ...boxServerCommand(programs, sandboxed, { reportsEnvironment: true }),
      ],
    });
    const cgroups = await this.options.cgroups();
    const limits = {
      memoryBytes: spec.memory_mb * MIB + BOX_BYTES,
      taskCount,
      cpus: spec.cpus,
    };
    const cgroup = (await cgroups?.create(request.name, limits)) ?? null;
    const joined = cgroup?.directories ?? [];
    try {
      const process = await spawner.spawn({
        argv: ['/bin/sh', '-c', JOIN_SCRIPT, 'floe-join', String(joined.length), ...joined, ...args],
        // Apptainer unpacks SIF files in its temporary directory where it cannot mount them.
        env: { PATH: HOST_PATH, HOME: dir, APPTAINER_TMPDIR: join(dir, 'tmp'), TMPDIR: join(dir, 'tmp') },
        cwd: '/',
        maxOutputBytes: 64 * 1024,
      });
      return { process, cgroup, dir };
    } catch (error) {
      await cgroup?.remove();
      throw error;
    }
  }

  private async end({ process, cgroup, dir }: Sandbox, connection?: BoxConnection): Promise<void> {
    const ended = process.done.catch(() => {});
    // Without its connection, the box server ends, and Apptainer ends its own processes in order. Killed ones would be left to the first
    // process of the host.
    connection?.close();
    const waiting = new AbortController();
    if (connection !== undefined)
      await Promise.race([ended, sleep(this.options.clock, END_MS, waiting.signal).catch(() => {})]);
    waiting.abort();
    process.kill();
    await ended;
    await cgroup?.remove();
    await removeTree(dir).catch(() => {});
  }

  private async imageOf(image: string | null, signal: AbortSignal): Promise<Image> {
    if (image === null) {
      throw new FloeError('schema_violation', 'runtime.image: the apptainer back end needs an image', {
        path: 'runtime.image',
      });
    }
    if (image.startsWith('/')) {
      if ((await stat(image).catch(() => null)) !== null) return { path: image, env: {} };
      throw new FloeError('runtime_failed', `runtime.image: there is no ${image} on this node`, { image });
    }
    if (this.options.images === null) {
      throw new FloeError(
        'unsupported',
        `runtime.image: ${image} is not an absolute path, and this node has no image store`,
      );
    }
    return this.options.images.rootFileSystem(image, signal);
  }

  private get profilePath(): string {
    return join(this.dir, '.share', 'seccomp.json');
  }

  private async prepare(): Promise<BoxPrograms> {
    await mkdir(this.options.stateDir, { recursive: true });
    await removeDeadGatewayDirs(this.options.stateDir);
    const programs = await copyBoxPrograms(join(this.dir, '.share'));
    await writeFile(this.profilePath, seccompProfile(APPTAINER_DENIED_CALLS));
    return programs;
  }
}

const ROOT_PROBLEM: RuntimeProblem = {
  problem: 'Apptainer sandboxes of root would run as root of this machine',
  remedy: 'run the gateway as another user, or use bubblewrap, docker or podman',
};

/** Whether this process is root of the machine, and not only of a user namespace. */
async function isRootOfHost(): Promise<boolean> {
  if (process.getuid?.() !== 0) return false;
  const map = await readFile('/proc/self/uid_map', 'utf8').catch(() => '');
  return /^\s*0\s+0\s/.test(map);
}

/** Rejects with an error that quotes the output of Apptainer when it ends before the box server is ready. */
async function earlyEnd(process: SpawnedProcess): Promise<never> {
  const { exitCode, stdout, stderr } = await process.done;
  const output = Buffer.concat([stdout, stderr]).toString().trim().slice(-OUTPUT_CHARS);
  throw new FloeError('runtime_failed', `Apptainer ended with code ${exitCode} while it was starting: ${output}`, {
    exit_code: exitCode,
  });
}

/** The process ends with its sandbox, unless the spawn helper has died. */
function explainEnd({ process }: Sandbox): Promise<BoxEnd> {
  process.kill();
  return process.done.then(
    () => ({ byAgent: true, killedBy: null }),
    () => ({ byAgent: false, killedBy: null }),
  );
}

function imageVariables(environment: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(Object.entries(environment).filter(([name]) => !NOT_OF_IMAGE.test(name)));
}

/** Makes a root file system that contains only a shell. */
async function makeProbeImage(dir: string): Promise<void> {
  for (const name of ['bin', 'dev', 'etc', 'proc', 'sys', 'tmp']) await mkdir(join(dir, name), { recursive: true });
  await copyProgram('/bin/sh', dir);
}

/** Removes the sandbox directories of gateway processes that have ended. The sandboxes in them ended with the gateway process. */
async function removeDeadGatewayDirs(stateDir: string): Promise<void> {
  for (const name of await readdir(stateDir)) {
    const pid = Number(/^apptainer-(\d+)$/.exec(name)?.[1]);
    if (Number.isNaN(pid) || pid === process.pid || isRunning(pid)) continue;
    await removeTree(join(stateDir, name));
  }
}
