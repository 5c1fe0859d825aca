import { availableParallelism } from 'node:os';
import type { Clock } from '@floe-rl/core';
import type { McpServer } from '@floe-rl/core/schema';
import { builtInAgents } from '../agents/registry.ts';
import { AgentProcess, type EpisodeBackend } from './agent-process.ts';
import type { PluginModules } from './catalog.ts';
import { defaultTools } from './episode-tools.ts';
import type { EpisodeEnd, EpisodeOrder } from './protocol.ts';
import type { PythonPlugin } from './python/python-plugin.ts';

export type AgentHostOptions = {
  readonly clock: Clock;
  /** The operator's agents, environments and tools. */
  readonly modules: PluginModules;
  /** Settings for tools and environments, by name. */
  readonly services: Readonly<Record<string, string>>;
  /** MCP servers whose tools agents may use. */
  readonly mcpServers: readonly McpServer[];
  /** Environment variables of the processes. */
  readonly env: Readonly<Record<string, string>>;
  /** Maximum number of processes for each set of modules; `null`: one less than there are processors, at least 1. */
  readonly processes: number | null;
  /** Time in milliseconds for which code may block a process, before the process is ended. */
  readonly blockedMs: number;
};

/**
 * Runs the agents of a node in child processes, which start when they are needed. Episodes of floe's own agents, environments and tools share
 * no process with episodes that use modules of the operator. Episodes that use different modules share no process either.
 */
export class AgentHost {
  private readonly options: AgentHostOptions;
  /** Processes by the modules that they have loaded. */
  private readonly processes = new Map<string, AgentProcess[]>();

  constructor(options: AgentHostOptions) {
    this.options = options;
  }

  /** Runs one episode; rejects as {@link AgentProcess.run}. */
  run(order: EpisodeOrder, backend: EpisodeBackend, signal: AbortSignal): Promise<EpisodeEnd> {
    return this.processFor(order).run(order, backend, signal);
  }

  /** Ends all processes and their episodes. May be called twice. */
  async close(): Promise<void> {
    const all = [...this.processes.values()].flat();
    this.processes.clear();
    await Promise.all(all.map((process) => process.close()));
  }

  /** Returns the process with the fewest episodes, or a new one while there may be more. */
  private processFor(order: EpisodeOrder): AgentProcess {
    const modules = modulesOf(order, this.options.modules);
    const key = JSON.stringify(modules);
    const living = (this.processes.get(key) ?? []).filter(({ hasEnded }) => !hasEnded);
    this.processes.set(key, living);
    const [first, ...others] = living;
    const idlest = others.reduce((least, other) => (other.load < (least?.load ?? 0) ? other : least), first);
    const count = this.options.processes ?? Math.max(1, availableParallelism() - 1);
    if (idlest !== undefined && (idlest.load === 0 || living.length >= count)) return idlest;
    const { clock, services, mcpServers, env, blockedMs } = this.options;
    const created = new AgentProcess({ setup: { modules, services, mcpServers }, env, clock, blockedMs });
    living.push(created);
    return created;
  }
}

/** Returns the operator's modules that an episode uses. */
function modulesOf({ agent, options, environment, tools }: EpisodeOrder, all: PluginModules): PluginModules {
  const pick = <T>(from: Readonly<Record<string, T>>, names: readonly string[]): Record<string, T> =>
    Object.fromEntries(Object.entries(from).filter(([name]) => names.includes(name)));
  return {
    agents: pick(all.agents, [agent]),
    handlers: agent === 'handler' ? (all.handlers ?? {}) : {},
    environments: pick(all.environments, environment === null ? [] : [environment.type]),
    python: pythonFor({ agent, environment }, all.python ?? {}),
    // The default tools of the operator's agents are only known when their module is loaded.
    tools: tools === null && agent in all.agents ? all.tools : pick(all.tools, toolNames(agent, options, tools)),
  };
}

/** Returns the Python plug-ins that an episode uses. */
export function pythonFor(
  { agent, environment }: Pick<EpisodeOrder, 'agent' | 'environment'>,
  all: Readonly<Record<string, PythonPlugin>>,
): Record<string, PythonPlugin> {
  const isUsed = (name: string, { kind }: PythonPlugin): boolean => {
    if (kind === 'handler') return agent === 'handler';
    return name === (kind === 'runner' ? agent : environment?.type);
  };
  return Object.fromEntries(Object.entries(all).filter(([name, plugin]) => isUsed(name, plugin)));
}

/** Returns the names of the toolsets of an episode. Settings that do not fit the agent end the episode later. */
function toolNames(agent: string, options: object, tools: EpisodeOrder['tools']): string[] {
  if (tools !== null) return tools.map(({ name }) => name);
  const definition = builtInAgents().get(agent);
  const settings = definition?.settings.safeParse(options);
  if (definition === undefined || settings?.success !== true) return [];
  return defaultTools(definition, settings.data).map(({ name }) => name);
}
