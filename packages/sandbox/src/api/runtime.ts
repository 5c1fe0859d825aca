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
  /** The exceeded limit that the command was killed for; `null` when no limit was exceeded. */
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
   * Runs a command until it ends. A non-zero exit code is a result, not an error. When `signal` aborts, every process of the command is killed
   * and the promise rejects with the reason of `signal`.
   *
   * Before the command starts, rejects with `workdir_missing` when `cwd` does not exist, with `schema_violation` for an environment or
   * arguments that no process can have, or with `runtime_failed`. Once the command has started, rejects with `runtime_failed` only when the
   * spawn helper died (detail `helper`). Whatever a command does to its own processes and files is a result. When the promise settles, all
   * processes of the command have ended, unless the rejection has the detail `unkillable`.
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
   * Replaces the sandbox's files by the files of a snapshot. The snapshot is of this sandbox, or of another sandbox of this node with the same
   * back end and image. Ends all commands and tools of the sandbox first, and their calls reject with `runtime_failed`. Rejects with
   * `unsupported`, with `runtime_failed`, or with the reason of `signal`; the files have then not changed.
   */
  restore(snapshot: RuntimeSnapshot, signal: AbortSignal): Promise<void>;
  /**
   * Returns this sandbox for work that the agent's user may not do. Where the sandbox has more than one user, commands run as root and files
   * belong to root. Root's commands have root's home directory and find no programs that the user can change. Files are not written, read or
   * run through links of the user to files of other users. Tools of root do follow such links.
   */
  asRoot(): Runtime;
  /**
   * Must be called when the proxies of the start request have been replaced by others that listen at the same paths. Absent in sandboxes that
   * open the socket at its path for each connection.
   */
  onProxiesReplaced?(): void;
  /** Ends every process of the sandbox and removes its mounts, directories and sockets. May be called twice; never rejects. */
  stop(): Promise<void>;
}

/** The files of a sandbox at one moment. No sandbox can change them. They stay in memory or on disk until they are released. */
export interface RuntimeSnapshot {
  readonly backend: RuntimeBackend;
  /** Name of the sandbox that the snapshot was taken from. Processes with this name may exist until the snapshot is released. */
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
   * Snapshot whose files the sandbox has from the start; `null` for none. The start rejects with `unsupported` when the snapshots of the back
   * end do not contain all files, or when the snapshot is of another image.
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
   * Starts a sandbox. Rejects with `runtime_unavailable` when this host cannot run the back end, and with `unsupported` or `schema_violation`
   * for a spec that the back end cannot satisfy. Rejects with `runtime_failed` for another failure, or with the reason of `signal`. After a
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

/** Which snapshots a back end takes of the files of its sandboxes. */
export type SnapshotSupport = {
  /** `overlay`: files become a layer that is only read; `copy`: they are copied; `none`: there are no snapshots. */
  readonly method: 'overlay' | 'copy' | 'none';
  /** The files in a snapshot. `all`: all files that commands can write; `workdir`: the files of the workdir; `null`: there are no snapshots. */
  readonly files: 'all' | 'workdir' | null;
};

export const NO_SNAPSHOTS: SnapshotSupport = { method: 'none', files: null };

/** The files that a snapshot contains, for each back end. */
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
