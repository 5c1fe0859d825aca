import { execFile } from 'node:child_process';
import { mkdir, readFile, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { asFloeError, FloeError, MIB, sleep } from '@floe-rl/core';
import { runtimeSpecSchema } from '@floe-rl/core/schema';
import type { Runtime, RuntimeDescription, RuntimeProblem, RuntimeProvider, StartRequest } from '../../api/runtime.ts';
import type { BoxConnection, BoxEnd } from '../../box/connection.ts';
import { BOX_BYTES, BOX_TASKS } from '../../box/tool-server.ts';
import type { NodeImages } from '../../images/node-images.ts';
import type { Cgroup, Cgroups } from '../../processes/cgroup.ts';
import type { SpawnedProcess } from '../../spawn/spawner.ts';
import { HOST_PATH, proxyOriginOf } from '../../workspace/environment.ts';
import { type BoxPrograms, boxMounts, boxServerCommand, copyBoxPrograms, filterPath } from '../boxed/placement.ts';
import { refuseSnapshot } from '../boxed/runtime.ts';
import { type Boxed, startBoxed } from '../boxed/start.ts';
import { type HostImage, hostImage, requireImage } from '../host-image.ts';
import { capabilitiesOf, processLimit, unenforcedLimits } from '../host-limits.ts';
import { type HostBackend, type HostOptions, HostProvider, type SandboxStart, tryCommand } from '../host-provider.ts';
import { copyProgram } from '../sandbox-programs.ts';
import { APPTAINER_DENIED_CALLS, apptainerArgs } from './command.ts';

const run = promisify(execFile);

/** Number of tasks of Apptainer itself in the control group of a sandbox. */
const APPTAINER_TASKS = 64;
/**
 * Shell script that runs a command with an RLIMIT_NPROC, which holds for its sandbox as a whole, so that a fork bomb cannot outrun the
 * checks. Arguments: the number of tasks, the command.
 */
const LIMIT_SCRIPT = 'ulimit -p "$1" 2>/dev/null || ulimit -u "$1" 2>/dev/null; shift; exec "$@"';
/** Time in milliseconds that a sandbox has to end by itself before it is killed. */
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

export type ApptainerOptions = HostOptions & {
  /** The program Apptainer: a path, or a name on {@link HOST_PATH}. */
  readonly command: string;
  /** Images of registries; `null` when only directories and files can be images. */
  readonly images: NodeImages | null;
  /** Resolves with an object that creates control groups; `null` when this process may not create any. */
  readonly cgroups: () => Promise<Cgroups | null>;
};

type Start = SandboxStart<HostImage, BoxPrograms>;

/** A running sandbox on the host. */
type Sandbox = { readonly process: SpawnedProcess; readonly cgroup: Cgroup | null };

/** Returns the provider of sandboxes that run each session in one process of Apptainer, without root privileges. */
export function apptainerProvider(options: ApptainerOptions): RuntimeProvider {
  return new HostProvider(options, new Apptainer(options));
}

class Apptainer implements HostBackend<HostImage, BoxPrograms> {
  readonly backend = 'apptainer';
  readonly dirMode = 0o700;
  private readonly options: ApptainerOptions;
  private probeCount = 0;

  constructor(options: ApptainerOptions) {
    this.options = options;
  }

  async probe(provider: Pick<RuntimeProvider, 'start'>, dir: string): Promise<RuntimeProblem | null> {
    if (await isRootOfHost()) return ROOT_PROBLEM;
    const { command } = this.options;
    const version = await run(command, ['--version'], { env: { PATH: HOST_PATH, HOME: '/' } }).catch(() => null);
    if (version === null) {
      return { problem: `${command} cannot be run`, remedy: 'install Apptainer, or set --apptainer-command' };
    }
    const probeDir = join(dir, `.probe-${this.probeCount++}`);
    try {
      const image = join(probeDir, 'image');
      await makeProbeImage(image);
      await tryCommand(provider, runtimeSpecSchema.parse({ image, memory_mb: 64 }));
      return null;
    } catch (error) {
      const problem = `a sandbox of ${version.stdout.trim()} cannot be started: ${asFloeError(error).message}`;
      return { problem, remedy: 'allow user namespaces for this user, as `apptainer exec --userns` needs' };
    } finally {
      await rm(probeDir, { recursive: true, force: true });
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
      capabilities: capabilitiesOf(this.backend, {
        isolation: 'namespaces',
        byKernel: {
          memory_mb: controllers.has('memory'),
          max_processes: controllers.has('pids'),
          cpus: controllers.has('cpu'),
          storage_mb: false,
        },
        snapshots: 'copy',
        privileges: 'not_root',
      }),
    };
  }

  async check({ snapshot }: StartRequest): Promise<void> {
    refuseSnapshot(snapshot);
    if (await isRootOfHost()) throw new FloeError('runtime_unavailable', ROOT_PROBLEM.problem);
  }

  async imageOf(reference: string | null, signal: AbortSignal): Promise<HostImage> {
    const name = requireImage(this.backend, reference);
    const image = await hostImage(this.options.images, name, signal);
    if ((await stat(image.path).catch(() => null)) !== null) return image;
    throw new FloeError('runtime_failed', `runtime.image: there is no ${name} on this node`, { image: name });
  }

  prepare(dir: string): Promise<BoxPrograms> {
    return copyBoxPrograms(dir, APPTAINER_DENIED_CALLS);
  }

  async startIn(start: Start, signal: AbortSignal): Promise<Runtime> {
    const { dir, image, request } = start;
    for (const name of ['sockets', 'overlay', 'tmp']) await mkdir(join(dir, name), { mode: 0o700 });
    const boxed: Boxed<Sandbox> = {
      ...{ backend: this.backend, isolation: 'namespaces', user: null, cgroupDirectories: [] },
      socketDir: join(dir, 'sockets'),
      proxyOrigin: proxyOriginOf(request),
      imageVariables: (reported) => ({ ...variablesOfImage(reported), ...image.env }),
      create: () => this.spawn(start),
      failure: earlyEnd,
      explainEnd,
      remove: (sandbox, connection) => this.remove(sandbox, connection),
    };
    return startBoxed(start, boxed, signal);
  }

  private async spawn({ dir, image, request, shared: programs, spawner }: Start): Promise<Sandbox> {
    const { spec } = request;
    const taskCount = spec.max_processes + BOX_TASKS + APPTAINER_TASKS;
    const limit = processLimit(taskCount);
    const sandboxed = { ...request, proxy: spec.network === 'host' ? null : request.proxy };
    const args = apptainerArgs({
      program: this.options.command,
      image: image.path,
      overlay: join(dir, 'overlay'),
      seccomp: filterPath(programs),
      mounts: boxMounts(join(dir, 'sockets'), programs, sandboxed),
      hasNetwork: spec.network === 'host',
      argv: [
        ...(limit === null ? [] : ['/bin/sh', '-c', LIMIT_SCRIPT, 'floe-limit', limit]),
        ...boxServerCommand(programs, sandboxed, { reportsEnvironment: true }),
      ],
    });
    const cgroups = await this.options.cgroups();
    const limits = { memoryBytes: spec.memory_mb * MIB + BOX_BYTES, taskCount, cpus: spec.cpus };
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
      return { process, cgroup };
    } catch (error) {
      await cgroup?.remove();
      throw error;
    }
  }

  private async remove({ process, cgroup }: Sandbox, connection: BoxConnection | null): Promise<void> {
    const ended = process.done.catch(() => {});
    if (connection !== null) {
      // When its connection ends, the box server ends, and Apptainer ends its own processes in order. If Apptainer were killed, its processes
      // would be left to the first process of the host.
      connection.close();
      const waiting = new AbortController();
      await Promise.race([ended, sleep(this.options.clock, END_MS, waiting.signal).catch(() => {})]);
      waiting.abort();
    }
    process.kill();
    await ended;
    await cgroup?.remove();
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
async function earlyEnd({ process }: Sandbox): Promise<never> {
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

function variablesOfImage(environment: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(Object.entries(environment).filter(([name]) => !NOT_OF_IMAGE.test(name)));
}

/** Makes a root file system that contains only a shell. */
async function makeProbeImage(dir: string): Promise<void> {
  for (const name of ['bin', 'dev', 'etc', 'proc', 'sys', 'tmp']) await mkdir(join(dir, name), { recursive: true });
  await copyProgram('/bin/sh', dir);
}
