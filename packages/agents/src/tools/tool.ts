import type { Content } from '@floe-rl/core/schema';
import type { RuntimeTools } from '@floe-rl/sandbox';
import type { z } from 'zod';
import type { Conversation } from './conversation.ts';

export { ToolError } from '@floe-rl/sandbox';

/** JSON Schema of a tool's arguments, for a tool whose schema comes from elsewhere, such as an MCP server. */
export type JsonSchema = Readonly<Record<string, unknown>>;

/**
 * What a tool may change. The effect decides what the tool is given and how the calls of one reply run. Calls with `none` run in parallel,
 * calls with `environment` one after the other, and a call with `agent` alone, after the others.
 */
export type ToolEffect = 'none' | 'environment' | 'agent';

/** The sandbox of a session, in which tools act: shells, Python and files. */
export type Box = Omit<RuntimeTools, 'close' | 'loss'> & {
  /** The working directory of the session in the sandbox. */
  readonly workdir: string;
};

/** What every tool is given. */
type EpisodeView = {
  /** Settings of the node's operator, by name, such as the address of a search service. */
  readonly services: Readonly<Record<string, string>>;
  /** Adds to a metric of the episode. */
  count(metric: string, value?: number): void;
  /** Sets a metric of the episode. */
  measure(metric: string, value: number): void;
};

/** What a tool is given, by its effect. */
export type ToolContexts = {
  readonly none: EpisodeView;
  readonly environment: EpisodeView & { readonly box: Box | null };
  readonly agent: EpisodeView & { readonly box: Box | null; readonly conversation: Conversation };
};

/** Why a tool call ends the episode, in a few words, and the agent's final answer if there is one. */
export type EpisodeEnding = {
  readonly reason: string;
  readonly answer?: string;
  /** Whether the episode is cut off before its end, for instance because an environment has used up its steps. Default: false. */
  readonly isTruncated?: boolean;
};

/** What a tool call gives the agent. */
export type ToolResult = {
  /** What the agent sees; `null` when the tool has rewritten the conversation, so that the call has no answer in it. */
  readonly content: Content | null;
  /** Reward of the call, which counts in the score of the episode; default: the call has none. */
  readonly reward?: number;
  /** Set when the call ends the episode: why, and the agent's final answer if there is one. */
  readonly end?: EpisodeEnding;
  /** Whether the call failed, although the tool works. Counted, and hinted at. */
  readonly isError?: boolean;
};

/**
 * A tool of an agent. `run` gets arguments that fit `parameters`. It throws a {@link ToolError} for what the agent should read and may mend;
 * any other error is a defect of the tool, which ends the episode.
 */
export type Tool<Args = unknown, Effect extends ToolEffect = ToolEffect> = {
  readonly name: string;
  readonly description: string;
  readonly effect: Effect;
  readonly parameters: z.ZodType<Args> | JsonSchema;
  /** Time limit of a call in milliseconds; default: 2 minutes. */
  readonly timeoutMs?: number;
  /** Maximum number of characters of text that the agent sees. The middle of a longer text is left out. Default: 32,768. */
  readonly maxChars?: number;
  /** Whether a call changes text of a file, so that its failure is hinted at in its own way. Default: no call does. */
  isEdit?(args: Args): boolean;
  /**
   * Whether an agent calls the tool to end its work, so that a call before the work is complete may be answered with a reminder instead of being
   * run. Default: false.
   */
  readonly endsWork?: boolean;
  /** Whether calls have rewards, so that the score of an episode without a call is 0, and not missing. Default: false. */
  readonly hasRewards?: boolean;
  run(args: Args, context: ToolContexts[Effect], signal: AbortSignal): Promise<ToolResult | string>;
};

/** A tool of any kind. Its arguments are checked by its schema before each call. */
export type AnyTool = Tool<unknown, 'none'> | Tool<unknown, 'environment'> | Tool<unknown, 'agent'>;

/** Defines a tool. A module that an operator registers exports the definition as its default, or as `tool`. */
export function defineTool<Args, Effect extends ToolEffect>(tool: Tool<Args, Effect>): Tool<Args, Effect> {
  return tool;
}
