import { labelOf, type Owner } from '../processes/owner.ts';

export type SpawnRequest = {
  readonly argv: readonly string[];
  /** All environment variables of the child process. It inherits no variable. */
  readonly env: Readonly<Record<string, string>>;
  readonly cwd?: string | undefined;
  /** User and group of the process; default: the user and group of the process that starts it. */
  readonly owner?: { readonly uid: number; readonly gid: number } | null | undefined;
  /**
   * Bytes to write to the process's stdin, which is then closed. With `hold`, stdin stays open until the process is killed or the spawn
   * helper dies.
   */
  readonly stdin?: Buffer | string | 'hold' | undefined;
  /** Maximum number of bytes that are kept of stdout and of stderr each: one half from the start of the output, one half from its end. */
  readonly maxOutputBytes: number;
  /**
   * Limits of the process and its descendants together. When a limit is exceeded, all of these processes are killed. Ignored outside Linux.
   */
  readonly limits?: SpawnLimits | undefined;
  /**
   * An environment entry (`NAME=value`) that marks the process and its descendants. When the process ends, every other process with this
   * entry is killed, even outside the process group. Ignored outside Linux.
   */
  readonly marker?: string | undefined;
  /** Called while the process writes output, at most once a second. Must not throw. */
  readonly onOutput?: (() => void) | undefined;
};

export type SpawnLimits = {
  /** Maximum memory in bytes: the proportional set size, summed over the process and its descendants. */
  readonly memoryBytes: number;
  /** Total number of threads at which the process and its descendants are killed. */
  readonly taskCount: number;
  /**
   * Directories of the control group in which the command runs. The group's counters show which limit was hit, and its remaining processes
   * are killed when the command ends.
   */
  readonly cgroups?: readonly string[] | undefined;
  /**
   * Directories of a control group that the command shares with other processes. An increase of its counters while the command runs shows
   * which limit was hit.
   */
  readonly sharedCgroups?: readonly string[] | undefined;
};

export type SpawnResult = {
  readonly exitCode: number | null;
  readonly signal: string | null;
  readonly stdout: Buffer;
  readonly stderr: Buffer;
  /** Number of bytes of stdout and stderr beyond `maxOutputBytes`, which were dropped. */
  readonly droppedBytes: number;
  /** The exceeded limit that the process was killed for; absent or `null` when no limit was exceeded. */
  readonly killedBy?: 'memory' | 'processes' | null | undefined;
};

export interface SpawnedProcess {
  /** Id of the process, which is also the id of the process group that it leads. */
  readonly pid: number;
  /**
   * Resolves when the process has ended, the rest of its process group is killed and its output is closed. Rejects with `runtime_failed`
   * when the spawn helper dies.
   */
  readonly done: Promise<SpawnResult>;
  /** Resolves with the first line of stdout, without the newline; `null` when the process ends without writing a complete line. */
  readonly firstLine: Promise<string | null>;
  /**
   * Kills the process group with SIGKILL, and all processes with the request's `marker` or in its control group. May be called at any time
   * and more than once.
   */
  kill(): void;
}

/**
 * Starts child processes for the gateway. The implementation is a small helper process, because forking from a large Node process blocks
 * its event loop for 20 to 25 ms per GB of memory.
 */
export interface Spawner {
  /** Starts a process. Rejects with `runtime_failed` when the program cannot be started. */
  spawn(request: SpawnRequest): Promise<SpawnedProcess>;
  /** Kills all remaining processes and ends the spawn helper. May be called twice. */
  close(): Promise<void>;
  /** Process id of the running spawn helper; `null` before the first spawn and after `close`. */
  readonly helperPid?: number | null;
}

/** Wraps a spawner so that all processes that it starts have the label of the sandbox `name`. */
export function labelled(spawner: Spawner, owner: Owner, name: string): Spawner {
  const label = labelOf(owner, name);
  return {
    spawn: (request) => spawner.spawn({ ...request, env: { ...request.env, ...label } }),
    close: () => spawner.close(),
  };
}

/** A request to start a child process, as it is sent to the spawn helper or the box server. */
export type HelperSpawnRequest = Omit<SpawnRequest, 'stdin' | 'onOutput'> & {
  readonly stdin: Buffer | 'hold' | undefined;
  readonly reportsOutput: boolean;
};

/**
 * Messages from the gateway to its spawn helper. They are not validated, because the gateway and the helper are always the same version of
 * floe.
 */
export type HelperRequest =
  | { readonly type: 'spawn'; readonly id: number; readonly request: HelperSpawnRequest }
  | { readonly type: 'kill'; readonly id: number }
  | { readonly type: 'close' };

/** Messages from the spawn helper to its gateway. */
export type HelperReply =
  | { readonly type: 'ready' }
  | { readonly type: 'started'; readonly id: number; readonly pid: number }
  | { readonly type: 'failed'; readonly id: number; readonly message: string }
  | { readonly type: 'output'; readonly id: number }
  | { readonly type: 'line'; readonly id: number; readonly line: string }
  | { readonly type: 'done'; readonly id: number; readonly result: SpawnResult };
