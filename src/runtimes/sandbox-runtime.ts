import { onAbort } from '../core/abort.ts';
import type { Clock } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';
import type { SandboxFile } from '../core/sandbox.ts';
import type { RuntimeBackend } from '../schema/index.ts';
import type { Cgroup, CgroupLimits, Cgroups } from './processes/cgroup.ts';
import type { Owner } from './processes/owner.ts';
import type { ExecRequest, ExecResult, Runtime, RuntimePaths, StartRequest } from './runtime.ts';
import type { SpawnedProcess, Spawner, SpawnResult } from './spawn/spawner.ts';

/** A killed process ends within milliseconds unless it hangs in the kernel, for example on an unreachable network file system. */
const KILL_WAIT_MS = 10_000;

/** Output kept of a command that floe itself runs in a sandbox, such as `tar`. */
export const TOOL_OUTPUT_BYTES = 64 * 1024;

/** What a sandbox of any back end is made of. */
export type SandboxParts = {
  readonly spawner: Spawner;
  readonly clock: Clock;
  readonly owner: Owner;
  /** The sandbox's directory on the host, removed when it is stopped. */
  readonly dir: string;
  readonly request: StartRequest;
  /** `null` when this process may not create control groups; limits then rely on watching the processes alone. */
  readonly cgroups: Cgroups | null;
};

/**
 * Base of all back ends: runs commands as child processes, kills them when their signal aborts or the sandbox is stopped, and
 * reports activity and kills to the callbacks of the start request.
 */
export abstract class SandboxRuntime<Parts extends SandboxParts = SandboxParts> implements Runtime {
  abstract readonly backend: RuntimeBackend;
  abstract readonly isolation: 'sandboxed' | 'none';
  abstract readonly paths: RuntimePaths;
  abstract readonly proxyOrigin: string;
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

  stop(): Promise<void> {
    this.stopping ??= this.tearDown();
    return this.stopping;
  }

  /** Removes the sandbox once all of its commands have ended. Must not reject. */
  protected abstract remove(): Promise<void>;

  protected get name(): string {
    return this.parts.request.name;
  }

  /** Throws `runtime_failed` after {@link stop} was called. */
  protected refuseStopped(): void {
    if (this.stopping !== null) throw new FloeError('runtime_failed', `sandbox ${this.name} has been stopped`);
  }

  /**
   * Runs `work`, which is one command, with a control group for it (`null` when none can be created), and reports its start, its
   * end and why it was killed. The control group is removed when `work` has settled.
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

  /** Settles as `ending`, the end of `child`. Kills the child and rejects when `signal` aborts or the sandbox is stopped. */
  protected async awaitEnd<T>(child: SpawnedProcess, ending: Promise<T>, signal: AbortSignal): Promise<T> {
    this.running.set(child, ending);
    if (this.stopping !== null) child.kill();
    const release = onAbort(signal, () => child.kill());
    try {
      const result = await endOrGiveUp(ending, signal, this.parts.clock, this.name);
      signal.throwIfAborted();
      this.refuseStopped();
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

/** The argument list of a command; text is run by a shell. */
export function argvOf(command: ExecRequest['command']): readonly string[] {
  return typeof command === 'string' ? ['/bin/sh', '-c', command] : command;
}

/** The result of a command that ended as `ended` reports and took `wallMs`. */
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
 * Settles as `ending`, the end of a command that is killed when `signal` aborts. Rejects with `runtime_failed` when the command
 * has not ended within {@link KILL_WAIT_MS} after that; its processes are then left to the janitor.
 */
function endOrGiveUp<T>(ending: Promise<T>, signal: AbortSignal, clock: Clock, name: string): Promise<T> {
  return new Promise((resolve, reject) => {
    let cancel = (): void => {};
    const release = onAbort(signal, () => {
      cancel = clock.schedule(KILL_WAIT_MS, () => {
        const message = `a command of ${name} has not ended ${KILL_WAIT_MS / 1000} s after SIGKILL`;
        reject(new FloeError('runtime_failed', message, { unkillable: true }));
      });
    });
    const settled = (): void => {
      cancel();
      release();
    };
    ending.finally(settled).then(resolve, reject);
  });
}

/** Calls `onKill` with the reason when a command was ended early: by a limit (`killedBy`) or because `signal` has aborted. */
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
