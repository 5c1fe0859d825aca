import type { DirectCall } from '@floe-rl/core/protocol';
import type { McpServer, Skill, ToolSpec } from '@floe-rl/core/schema';
import type { EpisodeLimits, EpisodeResult, ModelEndpoint } from '../loop/episode.ts';
import type { HintSettings } from '../loop/hints.ts';
import type { PluginModules } from './catalog.ts';

/** What a process that runs agents is given at its start. It is no argument of the process, because those can be read by others. */
export type ProcessSetup = {
  readonly modules: PluginModules;
  readonly services: Readonly<Record<string, string>>;
  readonly mcpServers: readonly McpServer[];
};

/** What an episode is to be, as the node orders it from a process that runs agents. */
export type EpisodeOrder = {
  readonly sessionId: string;
  readonly taskId: string;
  readonly agent: string;
  readonly options: Readonly<Record<string, unknown>>;
  /** Tools that the task names; `null` for the tools of the agent. */
  readonly tools: readonly ToolSpec[] | null;
  readonly hints: HintSettings;
  readonly seed: number;
  readonly instruction: string;
  /** Text for the start of the conversation; `null` for none. */
  readonly systemPrompt: string | null;
  readonly metadata: Readonly<Record<string, unknown>>;
  readonly skills: readonly Skill[];
  readonly environment: { readonly type: string; readonly config: Readonly<Record<string, unknown>> } | null;
  readonly limits: EpisodeLimits;
  /** Where programs of the agent reach the model over HTTP. */
  readonly endpoint: ModelEndpoint;
  /** Working directory of the session in its sandbox; `null` for a session without a sandbox. */
  readonly workdir: string | null;
};

/** A kind of process in the sandbox that keeps its state. */
export type ToolProgram = 'shell' | 'python' | 'browser';

/** An operation in the sandbox. `process` is a number that the agent's process gives to each process in the sandbox. */
export type BoxRequest =
  | { readonly op: 'read'; readonly path: string; readonly options: object }
  | { readonly op: 'write'; readonly path: string; readonly content: string | Buffer }
  | { readonly op: 'edit'; readonly path: string; readonly edit: object }
  | { readonly op: 'list'; readonly path: string }
  | { readonly op: 'open'; readonly process: number; readonly program: ToolProgram; readonly options: object }
  | { readonly op: 'run'; readonly process: number; readonly code: string; readonly options: object }
  | { readonly op: 'interrupt'; readonly process: number }
  | { readonly op: 'type'; readonly process: number; readonly text: string }
  | { readonly op: 'restart'; readonly process: number }
  | { readonly op: 'close'; readonly process: number };

/** What an episode asks of its node. */
export type NodeRequest = ({ readonly kind: 'ask' } & DirectCall) | ({ readonly kind: 'box' } & BoxRequest);

/** How an episode ended, with its metrics. */
export type EpisodeEnd = { readonly result: EpisodeResult; readonly metrics: Readonly<Record<string, number>> };

/** The operations of a process that runs agents, which its node calls. Both are the same version of floe. */
export type WorkerOperations = {
  /** Loads the modules. Rejects when one cannot be loaded. */
  setup(setup: ProcessSetup): Promise<void>;
  run(start: { readonly episode: number; readonly order: EpisodeOrder }, signal: AbortSignal): Promise<EpisodeEnd>;
  /** Answers once the process's event loop runs. */
  ping(): void;
  /** Closes the toolsets that are kept, and ends the process. */
  close(): Promise<void>;
};

/** The operations of a node, which its processes that run agents call. */
export type HostOperations = {
  perform(request: { readonly episode: number; readonly body: NodeRequest }, signal: AbortSignal): Promise<unknown>;
  /** Reports that code of an episode has thrown outside every promise; `episode` is 0 when it is not known whose code it was. */
  crashed(crash: { readonly episode: number; readonly message: string }): void;
};

/**
 * Descriptor, in a process that runs agents, of the file in which it writes the number of the episode whose code runs; 0 for none. The node
 * opens the file as the last of the process's five.
 */
export const CULPRIT_DESCRIPTOR = 4;
