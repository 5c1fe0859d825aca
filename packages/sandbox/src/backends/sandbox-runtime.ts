import { asFloeError, type Clock, FloeError, MIB, onAbort } from '@floe-rl/core';
import type { Isolation, RuntimeBackend } from '@floe-rl/core/schema';
import type { SandboxFile } from '../api/files.ts';
import type { ExecRequest, ExecResult, Runtime, RuntimePaths, RuntimeSnapshot, StartRequest } from '../api/runtime.ts';
import type { RuntimeTools } from '../api/tools.ts';
import { BoxToolClient } from '../box/tool-client.ts';
import { startToolServer } from '../box/tool-server.ts';
import type { Cgroup, Cgroups } from '../processes/cgroup.ts';
import type { CgroupLimits } from '../processes/cgroup-hierarchy.ts';
import type { Owner } from '../processes/owner.ts';
import type { SpawnedProcess, Spawner, SpawnResult } from '../spawn/spawner.ts';

/**
 * Maximum time in milliseconds to wait for a killed process to end. It normally ends within milliseconds, unless it hangs in the kernel,
 * for example on an unreachable network file system.
 */
const KILL_WAIT_MS = 10_000;

/** Maximum number of bytes of output that are kept of a command that floe itself runs in a sandbox, such as `tar`. */
export const TOOL_OUTPUT_BYTES = 64 * 1024;

/**
 * Command line of the first process of a sandbox. This process reaps orphaned processes, and when it ends, the kernel ends all other
 * processes of the sandbox. Without the `exit`, some shells would replace themselves by the command instead of waiting for it.
 */
export const INIT = ['/bin/sh', '-c', '"$@"; exit "$?"', 'floe-init'];

/** The objects and settings that a sandbox of any back end needs. */
export type SandboxParts = {
  readonly clock: Clock;
  /** The sandbox's directory on the host. It is removed when the sandbox is stopped. */
  readonly dir: string;
  readonly request: StartRequest;
  /**
   * Creates control groups for the commands of the sandbox; `null` when this process may not create any, absent when another program limits
   * the sandbox. Without control groups, `ProcessWatch`, which polls the process table, enforces the limits.
   */
  readonly cgroups?: Cgroups | null;
};

/** What a sandbox needs whose commands are child processes of this machine. */
export type HostParts = SandboxParts & { readonly spawner: Spawner; readonly owner: Owner };

/**
 * Base class of the sandboxes of all back ends. Runs commands as child processes, kills them when their signal aborts or the sandbox is
 * stopped, and reports activity and kills to the callbacks of the start request.
 */
export abstract class SandboxRuntime<Parts extends SandboxParts = SandboxParts> implements Runtime {
  abstract readonly backend: RuntimeBackend;
  abstract readonly isolation: Isolation;
  abstract readonly paths: RuntimePaths;
  abstract readonly proxyOrigin: string;
  abstract readonly mcpCommand: readonly string[];
  protected readonly parts: Parts;
  private readonly running = new Map<SpawnedProcess, Promise<unknown>>();
  private stopping: Promise<void> | null = null;

  constructor(parts: Parts) {
    this.parts = parts;
  }

  abstract exec(request: ExecRequest, signal: AbortSignal): Promise<ExecResult>;
  abstract writeFiles(files: readonly SandboxFile[], signal: AbortSignal): Promise<void>;
  abstract uploadDir(hostDir: string, target: string, signal: AbortSignal): Promise<void>;
  abstract readFile(path: string, maxBytes: number, signal: AbortSignal): Promise<Buffer | null>;
  abstract openTools(signal: AbortSignal): Promise<RuntimeTools>;

  async snapshot(_signal: AbortSignal): Promise<RuntimeSnapshot> {
    throw noSnapshots(this.backend);
  }

  async restore(_snapshot: RuntimeSnapshot, _signal: AbortSignal): Promise<void> {
    throw noSnapshots(this.backend);
  }

  asRoot(): Runtime {
    return this;
  }

  stop(): Promise<void> {
    this.stopping ??= this.tearDown();
    return this.stopping;
  }

  /** Removes the sandbox's files and mounts. {@link stop} calls it when all commands of the sandbox have ended. Must not reject. */
  protected abstract remove(): Promise<void>;

  protected get name(): string {
    return this.parts.request.name;
  }

  /** Throws `runtime_failed` when {@link stop} has been called. */
  protected refuseStopped(): void {
    if (this.stopping !== null) throw new FloeError('runtime_failed', `sandbox ${this.name} has been stopped`);
  }

  /** Throws the reason of `signal` when it has aborted, or `runtime_failed` when {@link stop} has been called. */
  protected refuseEnded(signal: AbortSignal): void {
    signal.throwIfAborted();
    this.refuseStopped();
  }

  /** Maximum number of bytes that are kept of each output of a command of the task. */
  protected get maxOutputBytes(): number {
    return Math.floor(this.parts.request.spec.max_output_mb * MIB);
  }

  /**
   * Opens tools of a box server that `run` runs as a command of the sandbox until it ends. `environment` has the variables of the tools.
   */
  protected async openToolServer(
    run: Parameters<typeof startToolServer>[0],
    environment: Readonly<Record<string, string>>,
    signal: AbortSignal,
  ): Promise<RuntimeTools> {
    this.refuseEnded(signal);
    const { maxOutputBytes } = this;
    const { clock, request } = this.parts;
    const { connection, end, explainEnd } = await startToolServer(run, { clock, maxOutputBytes }, signal);
    const env = { ...environment, ...request.spec.env };
    const common = { connection, clock, workdir: this.paths.workdir, env, maxOutputBytes };
    return new BoxToolClient({
      ...{ ...common, onActivity: request.onActivity, prefix: [], end, explainEnd, release: end },
    });
  }

  /**
   * Calls `work`, which runs one command. `work` receives a new control group, or `null` when this process may not create any. Reports to
   * the callbacks of the start request when the command starts and ends, and why it was killed. Removes the control group when `work` has
   * settled.
   */
  protected async runCommand<T extends SpawnResult>(
    limits: CgroupLimits | null,
    signal: AbortSignal,
    work: (cgroup: Cgroup | null) => Promise<T>,
  ): Promise<T> {
    const { cgroups, request } = this.parts;
    let killedBy: ExecResult['killedBy'] = null;
    request.onActivity?.();
    const cgroup = (await cgroups?.create(this.name, limits)) ?? null;
    try {
      const result = await work(cgroup);
      killedBy = result.killedBy ?? null;
      return result;
    } finally {
      request.onActivity?.();
      reportKill(request, killedBy, signal);
      await cgroup?.remove();
    }
  }

  /**
   * Waits for `ending`, the promise that settles when `child` has ended, and settles with its outcome. Kills the child and rejects when
   * `signal` aborts or the sandbox is stopped.
   */
  protected async awaitEnd<T>(child: SpawnedProcess, ending: Promise<T>, signal: AbortSignal): Promise<T> {
    this.running.set(child, ending);
    if (this.stopping !== null) child.kill();
    const release = onAbort(signal, () => child.kill());
    try {
      const result = await endOrGiveUp(ending, signal, this.parts.clock, this.name);
      this.refuseEnded(signal);
      return result;
    } finally {
      release();
      this.running.delete(child);
    }
  }

  private async tearDown(): Promise<void> {
    for (const child of this.running.keys()) child.kill();
    await Promise.allSettled(this.running.values());
    await this.remove();
  }
}

/** Returns the error of a back end that takes no snapshots. */
export function noSnapshots(backend: RuntimeBackend): FloeError {
  const message = `runtime.backend: ${backend} takes no snapshots of the files of a sandbox`;
  return new FloeError('unsupported', message, { path: 'runtime.backend' });
}

/** Returns the error of a file that is larger than a caller allows. */
export function tooLarge(path: string, maxBytes: number): FloeError {
  return new FloeError('runtime_failed', `${path} is larger than ${maxBytes} bytes`, { path });
}

/** Returns the argument list of a command. A command that is a string is run by a shell. */
export function argvOf(command: ExecRequest['command']): readonly string[] {
  return typeof command === 'string' ? ['/bin/sh', '-c', command] : command;
}

/**
 * Converts `ended`, the spawn helper's report on a command, to an {@link ExecResult}. `wallMs` is the command's running time in
 * milliseconds.
 */
export function execResult(ended: SpawnResult, wallMs: number): ExecResult {
  return {
    exitCode: ended.exitCode,
    signal: ended.signal,
    stdout: ended.stdout.toString(),
    stderr: ended.stderr.toString(),
    droppedBytes: ended.droppedBytes,
    killedBy: ended.killedBy ?? null,
    wallMs,
  };
}

/**
 * Waits for `ending`, the end of a command that is killed when `signal` aborts, and settles with its outcome. When the command is still
 * running {@link KILL_WAIT_MS} after the abort, rejects with the reason of the abort and the detail `unkillable`; the node's periodic
 * clean-up then ends the processes. The reason's code is kept, because the agent can make processes that take long to end: an exceeded time
 * limit must not become a failure of the host.
 */
function endOrGiveUp<T>(ending: Promise<T>, signal: AbortSignal, clock: Clock, name: string): Promise<T> {
  return new Promise((resolve, reject) => {
    let cancel = (): void => {};
    const release = onAbort(signal, () => {
      cancel = clock.schedule(KILL_WAIT_MS, () => {
        const { code, message, details } = asFloeError(signal.reason, 'runtime_failed');
        const note = `${message}; a command of ${name} has not ended ${KILL_WAIT_MS / 1000} s after SIGKILL`;
        reject(new FloeError(code, note, { ...details, unkillable: true }, signal.reason));
      });
    });
    const settled = (): void => {
      cancel();
      release();
    };
    ending.finally(settled).then(resolve, reject);
  });
}

/**
 * Calls `onKill` with the reason why a command was killed: the limit `killedBy`, or the abort of `signal`. Does nothing when the command
 * was not killed.
 */
export function reportKill(
  { onKill }: Pick<StartRequest, 'onKill'>,
  killedBy: ExecResult['killedBy'],
  signal: AbortSignal,
): void {
  if (killedBy !== null) onKill?.(killedBy);
  else if (signal.aborted) onKill?.(isDeadline(signal.reason) ? 'deadline' : 'stopped');
}

function isDeadline(reason: unknown): boolean {
  return FloeError.is(reason) && reason.code === 'deadline_exceeded';
}
