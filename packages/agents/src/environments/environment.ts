import type { AssistantMessage, ChatMessage, ChatTool } from '@floe-rl/core/schema';
import type { z } from 'zod';

/** What the agent sees next. Texts, tool results and images are all messages. */
export type Observation = {
  /**
   * What the player must know in every step, such as rules. It is in the first observation of each player, and stands before the messages of
   * the first prompt, or of each prompt where prompts stand for themselves. Default: nothing.
   */
  readonly introduction?: string;
  /**
   * Messages that are appended to the conversation of the player who acts next, which in an environment for one player is the only
   * conversation. Together with `answers` they answer every tool call of the action before.
   */
  readonly messages: readonly ChatMessage[];
  /** Tools that the agent may call from now on. Default: the tools of the previous observation; for the first observation none. */
  readonly tools?: readonly ChatTool[];
  /** Text that is the same for equal states. Algorithms such as GiGPO group the steps that start in the same state. */
  readonly stateHash?: string;
  /** Name of the player who acts next, in an environment for several players; default: the only player. */
  readonly seat?: string;
};

export type StepResult = Observation & {
  /**
   * Messages that are appended to the conversation of the player who has acted, when another player acts next; default: none. At the end
   * of an episode `messages` are for the player who has acted.
   */
  readonly answers?: readonly ChatMessage[];
  /** Reward of this step. The score of an episode is the sum of its rewards. */
  readonly reward: number;
  /** Rewards of this step by player, in an environment for several players. */
  readonly seatRewards?: Readonly<Record<string, number>>;
  /** Whether the episode has ended by the rules of the environment. */
  readonly terminated: boolean;
  /** Whether the episode was ended early, for instance because it has used up its steps. */
  readonly truncated: boolean;
  /** Numbers about the step, which become metrics of the episode: the last value of each name counts. */
  readonly metrics?: Readonly<Record<string, number>>;
};

/**
 * A world in which one episode takes place: a game, a shop, a database. It is used by one episode at a time: `reset` once or more, `step`
 * until it has terminated or was truncated, then `close`. An action may be anything that a model can write, and never makes `step` reject:
 * what the environment does not understand becomes an observation that says so.
 */
export interface Environment {
  /** Starts an episode. Equal seeds start equal episodes. Resolves with `null` when the environment has no episode for the seed. */
  reset(seed: number): Promise<Observation | null>;
  /** Takes the reply of the model as the next action. */
  step(action: AssistantMessage): Promise<StepResult>;
  /** Frees what the episode uses. May be called twice; never rejects. */
  close(): Promise<void>;
}

/** What a perfect player does in one episode. */
export type PerfectPlay = {
  readonly replies: readonly AssistantMessage[];
  /** The score that these replies get. No other player gets more. */
  readonly score: number;
};

/** What environments use besides their configuration. */
export type EnvironmentServices = {
  /** Aborts when the episode must end. */
  readonly signal: AbortSignal;
  /** Settings of the node's operator, by name, such as the address of a server; default: none. */
  readonly services?: Readonly<Record<string, string>>;
};

/** A kind of environment. Tasks refer to it by its name. */
export type EnvironmentDefinition<Config = unknown> = {
  readonly name: string;
  /** One sentence for people who choose an environment. */
  readonly description: string;
  /** Schema of the field `environment.config` of a task. */
  readonly config: z.ZodType<Config>;
  create(config: Config, services: EnvironmentServices): Environment;
  /**
   * Returns the perfect play of the episode with this seed, for `floe env check` and the simulated policy. It may use what the player cannot
   * see. Default: there is none.
   */
  perfectPlay?(config: Config, seed: number): PerfectPlay;
};

/** Defines an environment. A module that an operator registers exports the definition as its default, or as `environment`. */
export function defineEnvironment<Config>(definition: EnvironmentDefinition<Config>): EnvironmentDefinition<Config> {
  return definition;
}
