import type { SandboxFile } from '../core/sandbox.ts';
import type { AgentSpec, DialectName, Skill } from '../schema/index.ts';

/** What an adapter gets to build a launch from. Paths are those that the sandbox sees. */
export type LaunchContext = {
  readonly instruction: string;
  readonly agent: AgentSpec;
  /** Every skill of the task: its own, and those read from `agent.skills_path`. */
  readonly skills: readonly Skill[];
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
  /** Written before the start, outside of the work tree. */
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

/** Parts of an agent's configuration that not every harness has a place for. */
export type AgentFeature = 'mcp_servers' | 'skills' | 'system_prompt' | 'custom_shell';

/**
 * How to run one agent program unchanged. Pure: no I/O. `checkAgent` throws `schema_violation` for settings that it does
 * not know and `unsupported` for what the harness has no place for; it is called at submission, so `launch` may take a
 * checked agent for granted. Made by `defineHarness`.
 */
export interface HarnessAdapter {
  readonly name: string;
  /** Of an agent that names none, the first. */
  readonly dialects: readonly [DialectName, ...DialectName[]];
  readonly features: readonly AgentFeature[];
  /** null: nothing to install. */
  readonly install: HarnessInstall | null;
  /** Whether this agent's settings name a program of the image's own, so that the node needs no installation. */
  inImage(agent: AgentSpec): boolean;
  checkAgent(agent: AgentSpec): void;
  launch(context: LaunchContext): Launch;
  judge(report: HarnessReport): HarnessVerdict;
}

/**
 * A pinned installation, made from the lock shipped under `harness-locks/<name>/`: by `npm ci --ignore-scripts` from a
 * `package-lock.json`, or by pip into a virtual environment from a `requirements.txt` with hashes.
 */
export type HarnessInstall = {
  readonly version: string;
  readonly source: 'npm' | 'pip';
  /** Major version of the Node that runs it, installed next to it; null: a native program, or one in Python. */
  readonly nodeVersion: string | null;
  /** The program's entry, relative to the installation. The function throws `setup_failed` where there is none. */
  readonly program: string | ((platform: NodeJS.Platform, arch: string) => string);
  /**
   * Arguments of a run that loads the whole program and ends, without the network. It proves that the program starts,
   * and fills Node's compile cache, without which every session compiles it anew.
   */
  readonly warmUp: readonly string[];
  /** Arguments of a further run for a fuller cache, of which nothing else is asked: without a model it may well fail. */
  readonly cacheRun?: readonly string[];
  /** Variables for these runs, over `PATH`, `HOME` and the like. */
  readonly warmUpEnv?: Readonly<Record<string, string>>;
};

/**
 * Node's compile cache in an installation. Its entries are keyed by the absolute path of each file, so a sandbox must see
 * the installation at the path that it has on the host. Read-only there: a cache that agents could write would let one
 * of them feed code to the others.
 */
export function compileCacheDir(installDir: string): string {
  return `${installDir}/compile-cache`;
}
