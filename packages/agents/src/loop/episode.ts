import type { EpisodeStatus } from '@floe-rl/core/schema';
import type { z } from 'zod';
import type { Environment } from '../environments/environment.ts';
import type { Conversation } from '../tools/conversation.ts';
import type { AnyTool, Box } from '../tools/tool.ts';
import type { HintSettings } from './hints.ts';

/** What one reply of the model achieved. */
export type ReplyReward = {
  readonly completionId: string;
  readonly reward: number;
  /** The state in which the reply was given; see `Observation.stateHash`. */
  readonly stateHash?: string;
  /** Player who gave the reply, in an episode of several. */
  readonly seat?: string;
};

export type EpisodeResult = {
  readonly status: EpisodeStatus;
  /** Score of the episode; `null` when it has none, for instance because an evaluator computes the reward. */
  readonly score: number | null;
  /** Score of each player, in an episode of several. */
  readonly seatScores?: Readonly<Record<string, number>>;
  readonly replyRewards?: readonly ReplyReward[];
  /** Reward of each reply of the main agent, in their order, for an agent that does not know the ids of its replies. */
  readonly stepScores?: readonly number[];
  /** Why the episode ended, in a few words. */
  readonly reason: string;
  /** Final answer of the agent, for evaluators of answers; default: the text of its last reply. */
  readonly answer?: string;
};

/** Limits of an episode that the agent should know. */
export type EpisodeLimits = {
  /** Maximum number of replies of the main agent; `null` for no limit. */
  readonly turns: number | null;
  /** Context window of the model in tokens; `null` when it is unknown. */
  readonly contextTokens: number | null;
};

/** What is left of the limits of an episode; `null` for what has no limit. */
export type EpisodeLeft = { readonly turns: number | null; readonly contextTokens: number | null };

/** Where the model of an episode is reached over HTTP. */
export type ModelEndpoint = {
  /** Base URL, below which are the paths of OpenAI's API. */
  readonly baseUrl: string;
  /** Key that requests must carry as bearer token. */
  readonly apiKey: string;
};

/** One run of an agent: what it works on and with. */
export type Episode<Settings = unknown> = {
  /** Seed of the episode. The samples of a group have the same seed. */
  readonly seed: number;
  /** Instruction of the task; may be empty where an environment says what to do. */
  readonly instruction: string;
  /** Text for the start of the conversation; `null` for none. */
  readonly systemPrompt: string | null;
  /** Metadata of the task. */
  readonly metadata: Readonly<Record<string, unknown>>;
  readonly settings: Settings;
  readonly hints: HintSettings;
  /** The sandbox; `null` for a session without one. */
  readonly box: Box | null;
  /** The environment of the task; `null` for a task without one. */
  readonly environment: Environment | null;
  /** The tools of the agent, opened for this episode. */
  readonly tools: readonly AnyTool[];
  /** What the tools say about themselves before their first call. */
  readonly toolInstructions: readonly string[];
  readonly conversation: Conversation;
  /** The model of `conversation`, for programs that call it over HTTP; absent where it has no URL. */
  readonly endpoint?: ModelEndpoint;
  readonly services: Readonly<Record<string, string>>;
  readonly limits: EpisodeLimits;
  /** Aborts when the episode must end. */
  readonly signal: AbortSignal;
  left(): EpisodeLeft;
  /** Adds to a metric of the episode. */
  count(metric: string, value?: number): void;
  /** Sets a metric of the episode. */
  measure(metric: string, value: number): void;
};

/** A toolset that an agent has when the task names none: its name, or its name with more. */
export type DefaultTool =
  | string
  | {
      readonly name: string;
      /** Settings of the toolset; default: none. */
      readonly config?: Readonly<Record<string, unknown>>;
      /** Name of the operator's setting without which the agent does without the tool; default: it always has it. */
      readonly service?: string;
      /** Whether the agent does without the toolset where `problem` of it finds one; default: false. */
      readonly isOptional?: boolean;
    };

/** A kind of agent. Tasks refer to it by its name. */
export type AgentDefinition<Settings = unknown> = {
  readonly name: string;
  /** One sentence for people who choose an agent. */
  readonly description: string;
  /** Schema of the field `agent.settings.options` of a task. */
  readonly settings: z.ZodType<Settings>;
  /** The tools that the agent has when the task names none; default: none. */
  readonly tools?: readonly DefaultTool[];
  /** The same, where they depend on the agent's settings; default: `tools`. */
  toolsFor?(settings: Settings): readonly DefaultTool[];
  /** Pools of engines that the agent uses with these settings, beside the pool of the task; default: none. */
  enginePools?(settings: Settings): readonly string[];
  /** What the agent cannot work without; default: nothing. */
  readonly needs?: { readonly box?: boolean; readonly environment?: boolean };
  /** Runs one episode. A rejection means that the agent has a defect, or that a call of the model failed. */
  run(episode: Episode<Settings>): Promise<EpisodeResult>;
};

/** Defines an agent. A module that an operator registers exports the definition as its default, or as `agent`. */
export function defineAgent<Settings>(definition: AgentDefinition<Settings>): AgentDefinition<Settings> {
  return definition;
}
