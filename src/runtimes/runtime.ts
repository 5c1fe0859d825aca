import type { SandboxFile } from '../core/sandbox.ts';
import type { RuntimeBackend, RuntimeSpec } from '../schema/index.ts';

export type ExecRequest = {
  /** Text is run by `/bin/sh -c`, a list as a program and its arguments. */
  readonly command: string | readonly string[];
  /** Sandbox path to run in; default: the workdir. */
  readonly cwd?: string | undefined;
  readonly env?: Readonly<Record<string, string>> | undefined;
  readonly stdin?: Buffer | string | undefined;
  /** Whether the command can reach the session's proxy at {@link Runtime.proxyOrigin}; default: no. */
  readonly withProxy?: boolean | undefined;
};

export type ExecResult = {
  /** `null` when a signal ended the command. */
  readonly exitCode: number | null;
  /** Name of the signal that ended the command, such as `SIGTERM`; `null` when it exited. */
  readonly signal: string | null;
  readonly stdout: string;
  readonly stderr: string;
  /** Bytes of output beyond `max_output_mb`, which are dropped. */
  readonly droppedBytes: number;
  /** The exceeded limit that ended the command; `null` when no limit did. */
  readonly killedBy: 'memory' | 'processes' | null;
  readonly wallMs: number;
};

/** Sandbox paths. */
export type RuntimePaths = {
  readonly workdir: string;
  /** Home directory of the sandbox's user, outside the workdir. Harnesses keep their configuration there. */
  readonly home: string;
  /** Directory whose content is collected after the run. */
  readonly artifacts: string;
  /** Directory of log files, also collected after the run. */
  readonly logs: string;
};

/** One running sandbox. */
export interface Runtime {
  readonly backend: RuntimeBackend;
  readonly isolation: 'sandboxed' | 'none';
  readonly paths: RuntimePaths;
  /** `http://host:port` at which a command that runs with `withProxy` reaches the session's proxy. */
  readonly proxyOrigin: string;
  /**
   * Runs a command until it ends. When `signal` aborts, every process of the command is killed and the promise rejects with the
   * signal's reason. Otherwise rejects with `workdir_missing` when `cwd` does not exist, `schema_violation` for an environment or
   * arguments that no process can have, or `runtime_failed`; a non-zero exit code is a result. No process of the command outlives
   * the promise.
   */
  exec(request: ExecRequest, signal: AbortSignal): Promise<ExecResult>;
  /** Writes files as the sandbox's user and creates their parent directories. Never follows a link out of the sandbox. */
  writeFiles(files: readonly SandboxFile[], signal: AbortSignal): Promise<void>;
  /** Copies the files, directories and links of a host directory into a sandbox directory. Links stay links. */
  uploadDir(hostDir: string, target: string, signal: AbortSignal): Promise<void>;
  /** Content of a regular file; `null` when the path is none. Rejects with `runtime_failed` beyond `maxBytes` bytes. */
  readFile(path: string, maxBytes: number, signal: AbortSignal): Promise<Buffer | null>;
  /** Ends every process and removes every mount, directory and socket. May be called twice; never rejects. */
  stop(): Promise<void>;
}

export type StartRequest = {
  /** Name of the sandbox and of its directory, unique among the sandboxes of the node. */
  readonly name: string;
  readonly spec: RuntimeSpec;
  /** The session's proxy: its Unix socket on the host, and its TCP origin for sandboxes on the host network; `null` without a proxy. */
  readonly proxy: { readonly socketPath: string; readonly tcpOrigin: string } | null;
  /** Host directories mounted read-only at the given sandbox paths, such as harness installations. */
  readonly readOnlyMounts: readonly { readonly hostPath: string; readonly sandboxPath: string }[];
  /** Called when a command of the sandbox starts or ends, and at most once a second while it writes output. Must not throw. */
  readonly onActivity?: (() => void) | undefined;
  /** Called when a command was killed before it ended. Must not throw. */
  readonly onKill?: ((reason: KillReason) => void) | undefined;
};

/** Why a command was killed: a limit that it exceeded, its deadline, or that the session was stopped. */
export type KillReason = 'memory' | 'processes' | 'deadline' | 'stopped';

/** A sandbox back end. */
export interface RuntimeProvider {
  readonly backend: RuntimeBackend;
  /** Checks whether the back end works on this host; `null` when it does. The caller caches the result. */
  probe(): Promise<RuntimeProblem | null>;
  /**
   * Starts a sandbox. Rejects with `runtime_unavailable` when this host cannot run it, `runtime_failed`, `unsupported` or
   * `schema_violation` for a spec that the back end cannot satisfy, or the signal's reason; then nothing is left of the sandbox.
   */
  start(request: StartRequest, signal: AbortSignal): Promise<Runtime>;
}

/** What prevents a back end from working on this host, and the command that helps. */
export type RuntimeProblem = { readonly problem: string; readonly remedy: string };
