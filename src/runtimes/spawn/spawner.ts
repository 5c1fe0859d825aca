/**
 * Starts child processes on the gateway's behalf. The implementation is a small helper process, because forking from a
 * large Node process blocks its event loop 20 to 25 ms per GB of memory.
 */
export type SpawnRequest = {
  readonly argv: readonly string[];
  /** All of the child's environment; nothing is inherited. */
  readonly env: Readonly<Record<string, string>>;
  readonly cwd?: string | undefined;
  /** Written to stdin, which is then closed. `hold`: stdin stays open until the process is killed or the helper dies. */
  readonly stdin?: Buffer | string | 'hold' | undefined;
  /** Bytes kept of stdout and of stderr each: the first half and the last half of the budget. */
  readonly maxOutputBytes: number;
  /** Kills the process and all its descendants when together they exceed a limit. Linux only; ignored elsewhere. */
  readonly limits?: SpawnLimits | undefined;
  /**
   * An environment entry (`NAME=value`) that marks everything the process starts. When it ends, whatever still carries
   * the mark is killed, also what left the process group. Linux only; ignored elsewhere.
   */
  readonly marker?: string | undefined;
  /** Called while the process writes output, at most once a second. Must not throw. */
  readonly onOutput?: (() => void) | undefined;
};

export type SpawnLimits = {
  /** Proportional set size, summed over the process and its descendants. */
  readonly memoryBytes: number;
  /** Threads, counted likewise. */
  readonly taskCount: number;
  /**
   * Directories of the control group that the command runs in: its own counters then tell which limit was hit, and whatever
   * is left in it when the command ends is killed.
   */
  readonly cgroups?: readonly string[] | undefined;
};

export type SpawnResult = {
  readonly exitCode: number | null;
  readonly signal: string | null;
  readonly stdout: Buffer;
  readonly stderr: Buffer;
  readonly droppedBytes: number;
  /** The limit that ended the process; absent or null: none. */
  readonly killedBy?: 'memory' | 'processes' | null | undefined;
};

export interface SpawnedProcess {
  /** Of the process, which leads a process group of its own. */
  readonly pid: number;
  /**
   * Settles when the process has ended, what it left in its process group is killed and its output is closed. Rejects
   * with `runtime_failed` when the helper dies.
   */
  readonly done: Promise<SpawnResult>;
  /** Resolves on the first line of stdout (without the newline); null when the process ends without one. */
  readonly firstLine: Promise<string | null>;
  /** SIGKILL to the process group; safe to call at any time and twice. */
  kill(): void;
}

export interface Spawner {
  /** Rejects with `runtime_failed` when the program cannot be started. */
  spawn(request: SpawnRequest): Promise<SpawnedProcess>;
  /** Kills every process that is left, and the helper. May be called twice. */
  close(): Promise<void>;
  /** Pid of the running helper; null before the first spawn and after `close`. */
  readonly helperPid?: number | null;
}
