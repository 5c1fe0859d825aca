import type { AgentSpec, DialectName, Skill } from '@floe-rl/core/schema';
import type { SandboxFile } from '@floe-rl/sandbox';

/** The values from which an adapter builds the command, files and environment of a run. All paths are paths inside the sandbox. */
export type LaunchContext = {
  readonly instruction: string;
  readonly agent: AgentSpec;
  /** All skills of the task, including those read from `agent.skills_path`. */
  readonly skills: readonly Skill[];
  /** Base URL of the model API for this session, without a trailing slash: `http://host:port/s/<session key>`. */
  readonly baseUrl: string;
  readonly apiKey: string;
  /** Size of the policy's context window in tokens; `null` when it is unknown. */
  readonly contextWindow: number | null;
  readonly paths: { readonly workdir: string; readonly home: string; readonly logs: string };
  /** The MCP server of floe's tools in this sandbox, for an agent with `floe_tools`. */
  readonly toolServer: {
    readonly command: readonly string[];
    /** Variables for its commands, because some harnesses start MCP servers without their own environment. */
    readonly env: Readonly<Record<string, string>>;
  };
  /** Directory of the installed harness inside the sandbox; `null` when the harness has no installation. */
  readonly installDir: string | null;
};

export type Launch = {
  /** Files to write into the sandbox before the program starts. They are all outside the task's working directory. */
  readonly files: readonly SandboxFile[];
  readonly env: Readonly<Record<string, string>>;
  /** The command to run, as a shell command or an argument list. It must contain neither secrets nor the task's instruction. */
  readonly command: string | readonly string[];
  readonly stdin?: string | undefined;
  /**
   * Directory in the sandbox that is a mailbox of model calls. The command then cannot connect to the proxy. Default: none, and the command
   * reaches the proxy over HTTP.
   */
  readonly mailbox?: string;
};

/** Exit code, output and number of model calls of a finished run, from which an adapter judges the run. */
export type HarnessReport = {
  /** Exit code of the program; `null` when a signal ended it. */
  readonly exitCode: number | null;
  readonly stdout: string;
  readonly stderr: string;
  /** Number of model calls of the run that the proxy answered. */
  readonly turns: number;
};

/**
 * Whether the agent completed its run, with the reason when it did not. Most harnesses exit with 0 even after an API error, so each adapter
 * reads its harness's output.
 */
export type HarnessVerdict = { readonly ok: true } | { readonly ok: false; readonly message: string };

/** Fields of an agent's configuration that only some harnesses support. */
export type AgentFeature = 'mcp_servers' | 'skills' | 'system_prompt' | 'custom_shell';

/**
 * Describes how to run one agent program without changing it. All functions are pure: they do no I/O. `checkAgent` throws
 * `schema_violation` for unknown settings and `unsupported` for features that the harness lacks. `checkAgent` is called when a task is
 * submitted, so `launch` may assume that the agent is valid. `defineHarness` makes adapters.
 */
export interface HarnessAdapter {
  readonly name: string;
  /** The dialects that the harness can speak. The first one is used for an agent that names no dialect. */
  readonly dialects: readonly [DialectName, ...DialectName[]];
  readonly features: readonly AgentFeature[];
  /** The pinned installation of the harness; `null` when the harness needs none. */
  readonly install: HarnessInstall | null;
  /** Whether the agent's settings name a program in the task's image, so that the node needs no installation. */
  inImage(agent: AgentSpec): boolean;
  /** Whether the agent runs on the node instead of in the sandbox. Such a harness has no command, and `launch` throws. */
  readonly runsOnNode: boolean;
  checkAgent(agent: AgentSpec): void;
  launch(context: LaunchContext): Launch;
  judge(report: HarnessReport): HarnessVerdict;
}

/**
 * Describes a pinned installation of a harness. It is made from the lock that ships in `harness-locks/<name>/`: by `npm ci
 * --ignore-scripts` from a `package-lock.json`, or by pip into a virtual environment from a `requirements.txt` with hashes.
 */
export type HarnessInstall = {
  readonly version: string;
  readonly source: 'npm' | 'pip';
  /** Disk space that the installation takes, in MiB. The installer refuses a disk with less free space. */
  readonly diskMb: number;
  /** Major version of Node that is installed together with the program and runs it; `null` for a native or a Python program. */
  readonly nodeVersion: string | null;
  /**
   * Path of the program's entry file within the installation. A function returns the path for a platform and throws `setup_failed` for a
   * platform without a build.
   */
  readonly program: string | ((platform: NodeJS.Platform, arch: string) => string);
  /**
   * Arguments that make the program load completely and exit without using the network. The installer runs the program with these arguments to
   * check that it starts. It runs a Node program once more to fill Node's compile cache, so that sessions start faster.
   */
  readonly warmUp: readonly string[];
  /**
   * Arguments of an optional second run of the installed program, which adds to Node's compile cache. This run may fail, because it has no
   * model to call.
   */
  readonly cacheRun?: readonly string[];
  /** Environment variables for the runs of `warmUp` and `cacheRun`, in addition to `PATH`, `HOME` and `TMPDIR`. */
  readonly warmUpEnv?: Readonly<Record<string, string>>;
};

/**
 * Returns the directory of Node's compile cache in an installation. The cache contains absolute paths, so the installation must have the
 * same path in a sandbox as on the host. The cache is read-only in sandboxes: through a writable cache, one agent could run code in another
 * agent's sandbox.
 */
export function compileCacheDir(installDir: string): string {
  return `${installDir}/compile-cache`;
}
