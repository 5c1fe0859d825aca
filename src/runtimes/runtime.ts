import type { SandboxFile } from '../core/sandbox.ts';
import type { RuntimeBackend, RuntimeSpec } from '../schema/index.ts';

export type ExecRequest = {
  /** Run by `/bin/sh -c`; a list is run as it is, without a shell. */
  readonly command: string | readonly string[];
  /** Sandbox path; default: the workdir. Throws `workdir_missing` when it does not exist. */
  readonly cwd?: string | undefined;
  readonly env?: Readonly<Record<string, string>> | undefined;
  readonly stdin?: Buffer | string | undefined;
  /** Connect the sandbox's `127.0.0.1:<proxy port>` to this session's proxy for the time of the command. */
  readonly withProxy?: boolean | undefined;
};

export type ExecResult = {
  /** null when a signal ended the command. */
  readonly exitCode: number | null;
  readonly signal: string | null;
  readonly stdout: string;
  readonly stderr: string;
  /** Bytes beyond `max_output_mb`, dropped. */
  readonly droppedBytes: number;
  /** A limit that ended the command. */
  readonly killedBy: 'memory' | 'processes' | null;
  readonly wallMs: number;
};

/** Paths as a command in the sandbox sees them. */
export type RuntimePaths = {
  readonly workdir: string;
  /** Outside the workdir; where harness configuration lives. */
  readonly home: string;
  /** Collected after the run. */
  readonly artifacts: string;
  readonly logs: string;
};

/** One running sandbox. */
export interface Runtime {
  readonly backend: RuntimeBackend;
  readonly isolation: 'sandboxed' | 'none';
  readonly paths: RuntimePaths;
  /** What a harness in the sandbox must use as `http://host:port` to reach its proxy; null until `openProxy`. */
  readonly proxyOrigin: string;
  /**
   * Runs a command to its end. When `signal` aborts, every process of the command is killed and the promise rejects
   * with the signal's reason. Otherwise rejects only with `workdir_missing` or `runtime_failed`; a non-zero exit is a
   * result. No process of the command outlives the promise.
   */
  exec(request: ExecRequest, signal: AbortSignal): Promise<ExecResult>;
  /** Writes files as the sandbox's user; parents are made. Never follows a link out of the sandbox. */
  writeFiles(files: readonly SandboxFile[], signal: AbortSignal): Promise<void>;
  /** Copies a host directory's content (files, directories, links as links) into a sandbox directory. */
  uploadDir(hostDir: string, target: string, signal: AbortSignal): Promise<void>;
  /** A regular file's content, or null when there is none; at most `maxBytes`, else `runtime_failed`. */
  readFile(path: string, maxBytes: number, signal: AbortSignal): Promise<Buffer | null>;
  /** Ends every process and removes every mount, directory and socket. May be called twice; never rejects. */
  stop(): Promise<void>;
}

export type StartRequest = {
  /** Unique on this host: names the session's directory. */
  readonly name: string;
  readonly spec: RuntimeSpec;
  /** The session's proxy: a Unix socket on the host, and the TCP origin for runtimes without isolation; null: none. */
  readonly proxy: { readonly socketPath: string; readonly tcpOrigin: string } | null;
  /** Host directories shown read-only at the given sandbox paths (harness installations). */
  readonly readOnlyMounts: readonly { readonly hostPath: string; readonly sandboxPath: string }[];
  /** Called when a command of the sandbox begins or ends, and now and then while it writes output. Must not throw. */
  readonly onActivity?: (() => void) | undefined;
  /** Called when a command was ended before its time. Must not throw. */
  readonly onKill?: ((reason: KillReason) => void) | undefined;
};

/** A limit that a command exceeded, its deadline, or that nobody wants it any more. */
export type KillReason = 'memory' | 'processes' | 'deadline' | 'stopped';

/**
 * A sandbox back end. `start` rejects with `runtime_unavailable` (this host cannot) or `runtime_failed`, having removed
 * whatever it made; with the signal's reason likewise.
 */
export interface RuntimeProvider {
  readonly backend: RuntimeBackend;
  /** null when it works here; otherwise what is missing and the one command that helps. Cached by the caller. */
  probe(): Promise<RuntimeProblem | null>;
  start(request: StartRequest, signal: AbortSignal): Promise<Runtime>;
}

export type RuntimeProblem = { readonly problem: string; readonly remedy: string };
