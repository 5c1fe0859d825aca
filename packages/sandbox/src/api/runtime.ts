import type { Isolation, RuntimeBackend, RuntimeSpec } from '@floe-rl/core/schema';
import type { SandboxFile } from './files.ts';
import type { RuntimeTools } from './tools.ts';

export type ExecRequest = {
  /** The command to run. A string is run by `/bin/sh -c`; a list consists of a program and its arguments. */
  readonly command: string | readonly string[];
  /** Working directory of the command, as a path in the sandbox; default: the workdir. */
  readonly cwd?: string | undefined;
  readonly env?: Readonly<Record<string, string>> | undefined;
  readonly stdin?: Buffer | string | undefined;
  /** Whether the command can reach the session's proxy at {@link Runtime.proxyOrigin}; default: false. */
  readonly withProxy?: boolean | undefined;
  /**
   * Whether the command belongs to the sandbox rather than to the session that uses it, so that its output is no sign of the session's
   * activity; default: false.
   */
  readonly isService?: boolean | undefined;
};

export type ExecResult = {
  /** Exit code of the command; `null` when a signal ended it. */
  readonly exitCode: number | null;
  /** Name of the signal that ended the command, such as `SIGTERM`; `null` when the command exited. */
  readonly signal: string | null;
  readonly stdout: string;
  readonly stderr: string;
  /** Number of bytes of output that were dropped because the output was longer than the spec's `max_output_mb`. */
  readonly droppedBytes: number;
  /** The limit that the command exceeded and for which it was killed; `null` when no limit was exceeded. */
  readonly killedBy: 'memory' | 'processes' | null;
  readonly wallMs: number;
};

/** Paths of the directories that floe uses in a sandbox, as the commands in the sandbox see them. */
export type RuntimePaths = {
  readonly workdir: string;
  /** Home directory of the sandbox's user. It is outside the workdir, and harnesses keep their configuration there. */
  readonly home: string;
  /** Directory of the agent's artifacts. Its content is collected after the run. */
  readonly artifacts: string;
  /** Directory of log files. They are collected after the run together with the artifacts. */
  readonly logs: string;
};

/** One running sandbox, in which commands can be run. */
export interface Runtime {
  readonly backend: RuntimeBackend;
  readonly isolation: Isolation;
  readonly paths: RuntimePaths;
  /** Origin (`http://host:port`) at which a command that runs with `withProxy` reaches the session's proxy. */
  readonly proxyOrigin: string;
  /**
   * Command line that a program in the sandbox starts to get floe's tools over the Model Context Protocol (stdio). Its commands get the
   * environment and start in the working directory of that program.
   */
  readonly mcpCommand: readonly string[];
  /**
   * Runs a command until it ends. A non-zero exit code is a result, not an error. When `signal` aborts, every process of the command is
   * killed and the promise rejects with the reason of `signal`. Otherwise rejects with `workdir_missing` when `cwd` does not exist, with
   * `schema_violation` for an environment or arguments that no process can have, or with `runtime_failed`. Once the command has started, it
   * rejects with `runtime_failed` only when the spawn helper died (detail `helper`): whatever a command can do to its own processes and
   * files is a result. When the promise settles, all processes of the command have ended, unless the rejection has the detail `unkillable`.
   */
  exec(request: ExecRequest, signal: AbortSignal): Promise<ExecResult>;
  /**
   * Writes files as the sandbox's user and creates their parent directories. Never follows a symbolic link that leads out of the sandbox.
   */
  writeFiles(files: readonly SandboxFile[], signal: AbortSignal): Promise<void>;
  /** Copies the files, directories and symbolic links of a host directory into a directory of the sandbox. Links are copied as links. */
  uploadDir(hostDir: string, target: string, signal: AbortSignal): Promise<void>;
  /**
   * Reads a regular file; resolves with `null` when the path is not a regular file. Rejects with `runtime_failed` when the file is larger
   * than `maxBytes`.
   */
  readFile(path: string, maxBytes: number, signal: AbortSignal): Promise<Buffer | null>;
  /**
   * Opens tools: shells, Python and operations on files that start no process for each action. Rejects with `runtime_failed`, or with the
   * reason of `signal`.
   */
  openTools(signal: AbortSignal): Promise<RuntimeTools>;
  /**
   * Keeps the sandbox's files as they are now. Rejects with `unsupported` when the back end takes no snapshots, with `runtime_failed` while
   * a command runs or tools are open, or with the reason of `signal`. After a rejection the sandbox is unchanged.
   */
  snapshot(signal: AbortSignal): Promise<RuntimeSnapshot>;
  /**
   * Replaces the sandbox's files by those of a snapshot of this sandbox, or of another one of this node with the same back end and image.
   * Ends all commands and tools of the sandbox before; what they return then rejects with `runtime_failed`. Rejects with `unsupported`,
   * with `runtime_failed`, or with the reason of `signal`; the files are then those of before.
   */
  restore(snapshot: RuntimeSnapshot, signal: AbortSignal): Promise<void>;
  /**
   * Returns this sandbox for work that the user of the agent may not do: commands and files are those of root where the sandbox has more than
   * one user. Root's commands have root's home directory and find no programs that the user can change. Files are not written, read or run
   * through links of the user to what others own. Tools of root follow such links.
   */
  asRoot(): Runtime;
  /**
   * Must be called when other proxies listen at the paths of the start request than before. Absent in sandboxes that find a socket by its path
   * for each connection.
   */
  onProxiesReplaced?(): void;
  /** Ends every process of the sandbox and removes its mounts, directories and sockets. May be called twice; never rejects. */
  stop(): Promise<void>;
}

/** The files of a sandbox at one moment. No sandbox can change them. They stay in memory or on disk until they are released. */
export interface RuntimeSnapshot {
  readonly backend: RuntimeBackend;
  /** Name of the sandbox of which the snapshot was taken. Processes with this name may exist until the snapshot is released. */
  readonly sandbox: string;
  /** Number of bytes that the files take up. */
  readonly bytes: number;
  /** Frees the files. Sandboxes that were restored to them are not affected. May be called twice; never rejects. */
  release(): Promise<void>;
}

export type StartRequest = {
  /** Name of the sandbox and of its directory. It is unique among the sandboxes of the node. */
  readonly name: string;
  readonly spec: RuntimeSpec;
  /**
   * Addresses of the session's proxy: its Unix socket on the host, and its TCP origin for sandboxes on the host network; `null` when no
   * command uses the proxy. The directory of the socket exists and contains no other file. The socket is created later.
   */
  readonly proxy: { readonly socketPath: string; readonly tcpOrigin: string } | null;
  /**
   * Unix socket on the host of the proxy through which all commands of the sandbox reach allowed hosts; `null` without such a proxy. The
   * directory of the socket contains no other file. The socket exists.
   */
  readonly egressSocket?: string | null;
  /** Host directories, such as harness installations, to mount read-only at the given paths in the sandbox. */
  readonly readOnlyMounts: readonly { readonly hostPath: string; readonly sandboxPath: string }[];
  /**
   * Snapshot whose files the sandbox has from its start; `null` for none. Only for back ends whose snapshots contain all files of a sandbox;
   * another back end, and one of another image, rejects with `unsupported`.
   */
  readonly snapshot?: RuntimeSnapshot | null;
  /** Called when a command of the sandbox starts or ends, and at most once a second while it writes output. Must not throw. */
  readonly onActivity?: (() => void) | undefined;
  /** Called when a command was killed instead of ending by itself. Must not throw. */
  readonly onKill?: ((reason: KillReason) => void) | undefined;
};

/**
 * Why a command was killed: `memory` and `processes` are limits that the command exceeded, `deadline` means that its time limit passed, and
 * `stopped` that its session was stopped.
 */
export type KillReason = 'memory' | 'processes' | 'deadline' | 'stopped';

/** A sandbox back end, which starts sandboxes of one kind. */
export interface RuntimeProvider {
  readonly backend: RuntimeBackend;
  /**
   * Checks whether the back end works on this host. Resolves with the problem, or with `null` when the back end works. The check is slow,
   * so the caller should cache the result.
   */
  probe(): Promise<RuntimeProblem | null>;
  /** Describes the back end on this host. The result applies only where {@link probe} finds no problem. */
  describe(): Promise<RuntimeDescription>;
  /**
   * Starts a sandbox. Rejects with `runtime_unavailable` when this host cannot run the back end, with `unsupported` or `schema_violation`
   * for a spec that the back end cannot satisfy, with `runtime_failed` for another failure, or with the reason of `signal`. After a
   * rejection no part of the sandbox is left.
   */
  start(request: StartRequest, signal: AbortSignal): Promise<Runtime>;
}

/** A problem of this host (`problem`), and a command or hint that solves it (`remedy`). */
export type RuntimeProblem = { readonly problem: string; readonly remedy: string };

/** Properties of a back end on this host, for an operator. */
export type RuntimeDescription = {
  /** How commands are isolated, as the end of a sentence such as "works, without isolation". */
  readonly isolation: string;
  /** Limits of tasks that this host cannot enforce in full, and how to change that. */
  readonly weaknesses: readonly RuntimeProblem[];
  readonly capabilities: RuntimeCapabilities;
};

/**
 * How a limit is enforced: by the kernel, by floe's checks four times a second, by floe as it reads the output, or not at all.
 */
export type Enforcement = 'kernel' | 'checks' | 'floe' | 'none';

/** Limits of tasks whose enforcement differs between back ends. */
export type LimitField = 'memory_mb' | 'max_processes' | 'cpus' | 'storage_mb' | 'max_output_mb';

/** Which snapshots of the files of its sandboxes a back end takes. */
export type SnapshotSupport = {
  /** `overlay`: files become a layer that is only read; `copy`: they are copied; `none`: there are no snapshots. */
  readonly method: 'overlay' | 'copy' | 'none';
  /** `all`: all files that commands can write; `workdir`: those of the workdir; `null` without snapshots. */
  readonly files: 'all' | 'workdir' | null;
};

export const NO_SNAPSHOTS: SnapshotSupport = { method: 'none', files: null };

/** The files of which the sandboxes of a back end take snapshots. */
export const SNAPSHOT_FILES: Readonly<Record<RuntimeBackend, SnapshotSupport['files']>> = {
  bubblewrap: 'all',
  docker: 'workdir',
  podman: 'workdir',
  apptainer: 'workdir',
  local: null,
  none: null,
};

/** What a back end offers and enforces on this host. */
export type RuntimeCapabilities = {
  readonly isolation: Isolation;
  /** How each limit is enforced; `null` when the sandboxes run no commands. */
  readonly limits: Readonly<Record<LimitField, Enforcement>> | null;
  /** Values of `runtime.network` that the back end supports; `host` also needs the permission of the node. */
  readonly networks: readonly RuntimeSpec['network'][];
  readonly snapshots: SnapshotSupport;
  /** The users who may run the gateway with this back end. */
  readonly privileges: 'any' | 'engine' | 'not_root';
};
