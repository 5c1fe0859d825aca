import type { SandboxFile } from '../core/sandbox-file.ts';
import type { AgentSpec, DialectName } from '../schema/index.ts';

/** What an adapter gets to build a launch from. Paths are those that the sandbox sees. */
export type LaunchContext = {
  readonly instruction: string;
  readonly agent: AgentSpec;
  /** `http://host:port/s/<session key>`, without a trailing slash. */
  readonly baseUrl: string;
  readonly apiKey: string;
  /** Tokens that fit the policy's context window; null: not known. */
  readonly contextWindow: number | null;
  readonly paths: { readonly workdir: string; readonly home: string; readonly logs: string };
  /** Where the installed harness is seen in the sandbox; null for a harness without an installation. */
  readonly installDir: string | null;
};

export type Launch = {
  readonly files: readonly SandboxFile[];
  readonly env: Readonly<Record<string, string>>;
  /** A shell command, or an argument list. Secrets and instructions never go on the command line. */
  readonly command: string | readonly string[];
  readonly stdin?: string | undefined;
};

export type HarnessReport = {
  readonly exitCode: number | null;
  readonly stdout: string;
  readonly stderr: string;
  /** Model calls that the proxy answered. */
  readonly turns: number;
};

/** `ok`: the agent ended by itself. Exit codes lie (most harnesses exit 0 after an API error), so each adapter reads its own output. */
export type HarnessVerdict = { readonly ok: true } | { readonly ok: false; readonly message: string };

/**
 * How to run one agent program unchanged. Pure: no I/O. `checkAgent` throws `schema_violation` for settings that it does
 * not know; it is called at submission, so `launch` may take a checked agent for granted.
 */
export interface HarnessAdapter {
  readonly name: string;
  readonly dialects: readonly DialectName[];
  /** null: nothing to install (the `shell` harness). */
  readonly install: HarnessInstall | null;
  checkAgent(agent: AgentSpec): void;
  launch(context: LaunchContext): Launch;
  judge(report: HarnessReport): HarnessVerdict;
}

/** A pinned installation: a lock file shipped under `harness-locks/<name>/`, installed by `npm ci --ignore-scripts`. */
export type HarnessInstall = {
  readonly version: string;
  /** Major version of Node that runs it; installed next to it. */
  readonly nodeVersion: string;
  /**
   * Arguments for that Node, the first relative to the installation, of a run that loads the whole program and ends. It
   * proves that the program starts, and fills Node's compile cache, without which every session compiles it anew.
   */
  readonly warmUp: readonly string[];
};

/**
 * Node's compile cache in an installation. Its entries are keyed by the absolute path of each file, so a sandbox must see
 * the installation at the path that it has on the host. Read-only there: a cache that agents could write would let one
 * of them feed code to the others.
 */
export function compileCacheDir(installDir: string): string {
  return `${installDir}/compile-cache`;
}
