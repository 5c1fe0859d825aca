import type { SandboxFile } from '../core/sandbox.ts';
import type { AgentSpec, DialectName, Skill } from '../schema/index.ts';

/** The values from which an adapter builds a launch. Paths are paths inside the sandbox. */
export type LaunchContext = {
  readonly instruction: string;
  readonly agent: AgentSpec;
  /** All skills of the task, including those read from `agent.skills_path`. */
  readonly skills: readonly Skill[];
  /** Base URL of the model API for this session: `http://host:port/s/<session key>`, without a trailing slash. */
  readonly baseUrl: string;
  readonly apiKey: string;
  /** Size of the policy's context window in tokens; `null` when it is unknown. */
  readonly contextWindow: number | null;
  readonly paths: { readonly workdir: string; readonly home: string; readonly logs: string };
  /** Directory of the installed harness inside the sandbox; `null` for a harness without an installation. */
  readonly installDir: string | null;
};

export type Launch = {
  /** Files that are written before the program starts. All are outside the work tree. */
  readonly files: readonly SandboxFile[];
  readonly env: Readonly<Record<string, string>>;
  /** The command to run, as a shell command or an argument list. Neither secrets nor the instruction may be on the command line. */
  readonly command: string | readonly string[];
  readonly stdin?: string | undefined;
};

/** Exit code and output of a finished run. */
export type HarnessReport = {
  /** Exit code of the program; `null` when a signal ended it. */
  readonly exitCode: number | null;
  readonly stdout: string;
  readonly stderr: string;
  /** Number of model calls that the proxy answered. */
  readonly turns: number;
};

/**
 * Whether the agent ended by itself, with the reason when it did not. Exit codes do not show this, because most harnesses exit with 0
 * after an API error, so each adapter reads its harness's output.
 */
export type HarnessVerdict = { readonly ok: true } | { readonly ok: false; readonly message: string };

/** Parts of an agent's configuration that only some harnesses support. */
export type AgentFeature = 'mcp_servers' | 'skills' | 'system_prompt' | 'custom_shell';

/**
 * Describes how to run one agent program without changing it. All functions are pure: they do no I/O. `checkAgent` throws
 * `schema_violation` for unknown settings and `unsupported` for features that the harness lacks. It is called at submission, so `launch`
 * may rely on a checked agent. `defineHarness` makes adapters.
 */
export interface HarnessAdapter {
  readonly name: string;
  /** The dialects that the harness can speak. The first is used for an agent that names no dialect. */
  readonly dialects: readonly [DialectName, ...DialectName[]];
  readonly features: readonly AgentFeature[];
  /** The installation that the harness needs; `null` when it needs none. */
  readonly install: HarnessInstall | null;
  /** Whether the agent's settings name a program in the task's image, so that the node needs no installation. */
  inImage(agent: AgentSpec): boolean;
  checkAgent(agent: AgentSpec): void;
  launch(context: LaunchContext): Launch;
  judge(report: HarnessReport): HarnessVerdict;
}

/**
 * Describes a pinned installation, which is made from the lock that ships in `harness-locks/<name>/`: by `npm ci --ignore-scripts` from
 * a `package-lock.json`, or by pip into a virtual environment from a `requirements.txt` with hashes.
 */
export type HarnessInstall = {
  readonly version: string;
  readonly source: 'npm' | 'pip';
  /** Major version of the Node that is installed with the program and runs it; `null` for a native or a Python program. */
  readonly nodeVersion: string | null;
  /** Path of the program's entry file within the installation. The function throws `setup_failed` for a platform without a build. */
  readonly program: string | ((platform: NodeJS.Platform, arch: string) => string);
  /**
   * Arguments with which the program loads completely and exits, without using the network. This run checks that the program
   * starts, and fills Node's compile cache, so that sessions do not compile the program each time.
   */
  readonly warmUp: readonly string[];
  /** Arguments of a second run that adds to the compile cache. It may fail, because it has no model to call. */
  readonly cacheRun?: readonly string[];
  /** Environment variables for these runs, in addition to `PATH`, `HOME` and `TMPDIR`. */
  readonly warmUpEnv?: Readonly<Record<string, string>>;
};

/**
 * Returns the directory of Node's compile cache in an installation. Its entries contain the absolute path of each file, so the
 * installation must have the same path in a sandbox as on the host. It is read-only in sandboxes: through a writable cache one agent
 * could run code in another agent's sandbox.
 */
export function compileCacheDir(installDir: string): string {
  return `${installDir}/compile-cache`;
}
