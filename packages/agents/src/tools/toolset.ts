import { parseAs } from '@floe-rl/core';
import type { McpServer, Skill, ToolSpec } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { Environment } from '../environments/environment.ts';
import type { AnyTool, Box } from './tool.ts';

/** What a toolset is given when it is opened. A toolset that lives longer than a session is given nothing of a session. */
export type ToolsetContext = {
  /** The sandbox of the session; `null` for a session without one. */
  readonly box: Box | null;
  /** The environment of the task; `null` for a task without one. */
  readonly environment: Environment | null;
  /** Seed of the episode. */
  readonly seed: number;
  /** Metadata of the task. */
  readonly metadata: Readonly<Record<string, unknown>>;
  /** Skills of the task. */
  readonly skills: readonly Skill[];
  /** Settings of the node's operator, by name, such as the address of a search service. */
  readonly services: Readonly<Record<string, string>>;
  /** MCP servers of the node's operator. */
  readonly mcpServers: readonly McpServer[];
  /** Opens further toolsets, for instance for a sub-agent. They are closed with the session. */
  openTools(specs: readonly ToolSpec[]): Promise<readonly AnyTool[]>;
};

/** Tools that have been opened. */
export type OpenToolset = {
  readonly tools: readonly AnyTool[];
  /** What the agent should know before its first call, such as the rules of a game; default: nothing. It follows the system prompt. */
  readonly instructions?: string;
  /** Makes the tools as they were when they were opened. Needed where they live longer than a session and keep state. */
  reset?(): Promise<void>;
  /** Frees what the tools use. Must not reject. */
  close?(): Promise<void>;
};

/** Tools by one name that are opened together and share what they need, such as a shell or a connection to a server. */
export type ToolsetDefinition<Config = unknown> = {
  readonly name: string;
  /** One sentence for people who choose tools. */
  readonly description: string;
  readonly config: z.ZodType<Config>;
  /**
   * How long the opened tools live: for one session, for the sessions of one task (`group`), or as long as the process that runs the agents
   * (`node`). Tools that live longer than a session are used by one session at a time, and reset before each further session.
   */
  readonly scope: 'session' | 'group' | 'node';
  open(config: Config, context: ToolsetContext, signal: AbortSignal): Promise<OpenToolset>;
  /** Resolves with why the tools cannot work in this session, or with `null`. Called where an agent can do without them. Default: they can. */
  problem?(config: Config, context: ToolsetContext, signal: AbortSignal): Promise<string | null>;
};

/** Defines a toolset. A module that an operator registers exports the definition as its default, or as `toolset`. */
export function defineToolset<Config>(definition: ToolsetDefinition<Config>): ToolsetDefinition<Config> {
  return definition;
}

/** Returns the toolset that consists of one tool without settings. */
export function toolsetOf(tool: AnyTool): ToolsetDefinition {
  return {
    name: tool.name,
    description: tool.description,
    config: z.strictObject({}),
    scope: 'session',
    open: async () => ({ tools: [tool] }),
  };
}

/** Opens a toolset with settings of a task. Rejects with `schema_violation` for settings that do not fit, or as `open` rejects. */
export async function openToolset(
  toolset: ToolsetDefinition,
  config: unknown,
  context: ToolsetContext,
  signal: AbortSignal,
): Promise<OpenToolset> {
  return toolset.open(configOf(toolset, config), context, signal);
}

/** Resolves with why a toolset cannot work in a session; `null` when it can. Rejects as {@link openToolset}. */
export async function toolsetProblem(
  toolset: ToolsetDefinition,
  config: unknown,
  context: ToolsetContext,
  signal: AbortSignal,
): Promise<string | null> {
  return (await toolset.problem?.(configOf(toolset, config), context, signal)) ?? null;
}

function configOf(toolset: ToolsetDefinition, config: unknown): unknown {
  return parseAs(toolset.config, config, `the settings of the tool ${toolset.name}`, 'config');
}
