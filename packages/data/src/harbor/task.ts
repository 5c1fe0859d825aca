import type { HarborMcpServer, Healthcheck } from './config.ts';

/** Where the image of a task comes from: a reference to an existing image, or a folder with a Dockerfile. */
export type ImageSource =
  | { readonly kind: 'reference'; readonly reference: string }
  | { readonly kind: 'build'; readonly context: string; readonly dockerfile: string };

/**
 * The network that a task requests. `unstated`: the task does not state it. Harbor's default is then the public network; in floe the caller
 * decides.
 */
export type NetworkMode = 'public' | 'no-network' | 'allowlist' | 'unstated';

type User = string | number | null;

/** A reference solution: the script `solve.sh`, as a file in the folder `dir` or as a text. */
type Solution = { readonly env: Readonly<Record<string, string>> } & (
  | { readonly dir: string; readonly text: null }
  | { readonly dir: null; readonly text: string }
);

/** Limits of a sandbox; `null` for the default. */
export type HarborLimits = {
  readonly cpus: number | null;
  readonly memoryMb: number | null;
  readonly storageMb: number | null;
};

/** Settings of a verifier's own sandbox that differ from the settings of the agent's sandbox. */
export type VerifierEnvironment = {
  /** `null` for the image of the task. */
  readonly image: ImageSource | null;
  readonly buildSeconds: number;
  /** Working directory; `null` for the working directory of the image. */
  readonly workdir: string | null;
  readonly env: Readonly<Record<string, string>>;
  readonly limits: HarborLimits;
  readonly healthchecks: readonly Healthcheck[];
};

/** How the result of a task, or of a step of it, is graded. */
export type HarborVerifier = {
  /** Folders and files on this machine that are copied into `/tests`, in this order. */
  readonly tests: readonly string[];
  /** Name in `/tests` of the script that runs the tests. */
  readonly script: string;
  readonly grading: 'reward_file' | 'pytest_summary';
  readonly seconds: number;
  readonly env: Readonly<Record<string, string>>;
  readonly user: User;
  /** Paths of the agent's files that are copied to the verifier's own sandbox; `null` when the verifier runs in the agent's sandbox. */
  readonly carried: readonly string[] | null;
  /** The settings of the verifier's own sandbox; `null` for a copy of the agent's sandbox. */
  readonly environment: VerifierEnvironment | null;
  /** Commands that run in the agent's sandbox before its files are copied to the verifier's sandbox. */
  readonly collect: readonly { readonly command: string; readonly seconds: number }[];
};

/** The work of the agent in a task, or in one of several steps of it, and how it is graded. */
export type HarborPart = {
  readonly instruction: string;
  readonly healthchecks: readonly Healthcheck[];
  /** Folder whose content is copied into the working directory before the agent starts; `null` for none. It may have a `setup.sh`. */
  readonly workdirFiles: { readonly dir: string; readonly hasSetup: boolean } | null;
  /** Time limit of the agent in seconds; `null` when the task states none. */
  readonly agentSeconds: number | null;
  readonly verifier: HarborVerifier;
  /** The reference solution; `null` when there is none. */
  readonly solution: Solution | null;
};

/** One of several steps of a task. */
export type HarborStep = HarborPart & {
  readonly name: string;
  /**
   * Minimum reward of the step, or minimum components of its reward. When the reward is lower, the later steps do not run. `null` when the
   * later steps always run.
   */
  readonly minReward: number | Readonly<Record<string, number>> | null;
};

/** A task of Harbor or Terminal-Bench, read from its folder. Templates such as `${NAME}` in its variables are not replaced. */
export type HarborTask = HarborPart & {
  readonly name: string;
  /** The folder, as an absolute path. */
  readonly dir: string;
  /** The file with the configuration, for messages. */
  readonly file: string;
  readonly image: ImageSource;
  readonly buildSeconds: number;
  /** Working directory; `null` for the working directory of the image. */
  readonly workdir: string | null;
  readonly env: Readonly<Record<string, string>>;
  readonly network: NetworkMode;
  /** Hosts that the sandbox may reach with the network `allowlist`. */
  readonly allowedHosts: readonly string[];
  /** User of the image who runs the agent; `null` for the image's default user. */
  readonly agentUser: User;
  readonly limits: HarborLimits;
  readonly mcpServers: readonly HarborMcpServer[];
  /** Folder on this machine with a folder for each skill; `null` when the task has none. */
  readonly skillsDir: string | null;
  readonly artifacts: readonly string[];
  /** The steps. Their fields replace the fields of the task. Empty for a task with one part. */
  readonly steps: readonly HarborStep[];
  /** How the rewards of the steps are combined. */
  readonly stepReward: 'mean' | 'final';
  readonly metadata: Readonly<Record<string, unknown>>;
};
