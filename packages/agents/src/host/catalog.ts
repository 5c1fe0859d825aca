import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { FloeError, messageOf } from '@floe-rl/core';
import { handlerAgent } from '../agents/handler.ts';
import { builtInAgents } from '../agents/registry.ts';
import type { EnvironmentDefinition } from '../environments/environment.ts';
import { ENVIRONMENTS } from '../environments/registry.ts';
import { REMOTE_ENVIRONMENTS } from '../environments/remote/registry.ts';
import { delegateToolset } from '../loop/delegate.ts';
import type { AgentDefinition } from '../loop/episode.ts';
import type { HandlerDefinition } from '../loop/handler.ts';
import { isRunnerClass, runnerAgent } from '../loop/runner.ts';
import { builtInToolsets } from '../tools/registry.ts';
import type { AnyTool } from '../tools/tool.ts';
import { type ToolsetDefinition, toolsetOf } from '../tools/toolset.ts';
import type { PythonPlugin } from './python/python-plugin.ts';
import { loadPythonPlugins } from './python/python-plugins.ts';

/** Paths of the operator's modules by the names that tasks use, relative to the working directory. */
export type PluginModules = {
  readonly agents: Readonly<Record<string, string>>;
  readonly environments: Readonly<Record<string, string>>;
  readonly tools: Readonly<Record<string, string>>;
  /** Modules of handlers, which the agent `handler` runs; default: none. */
  readonly handlers?: Readonly<Record<string, string>>;
  /** Python classes by the names that tasks use; default: none. */
  readonly python?: Readonly<Record<string, PythonPlugin>>;
};

/** Agents, environments and toolsets by their names. */
export type Catalog = {
  readonly agents: ReadonlyMap<string, AgentDefinition>;
  readonly environments: ReadonlyMap<string, EnvironmentDefinition>;
  readonly toolsets: ReadonlyMap<string, ToolsetDefinition>;
};

/** A catalog with the operator's modules. */
export type LoadedCatalog = Catalog & {
  /** Ends the processes of Python plug-ins. */
  close(): Promise<void>;
};

/** Returns what floe itself has. */
export function builtInCatalog(): Catalog {
  return {
    agents: builtInAgents(),
    environments: new Map(
      [...ENVIRONMENTS, ...REMOTE_ENVIRONMENTS].map((environment) => [environment.name, environment]),
    ),
    toolsets: new Map([...builtInToolsets(), [delegateToolset.name, delegateToolset]]),
  };
}

/**
 * Loads the operator's modules beside what floe itself has. Rejects with `setup_failed` for a module that cannot be imported, that exports
 * something else as its default, or that has the name of what floe has.
 */
export async function loadCatalog(modules: PluginModules): Promise<LoadedCatalog> {
  const catalog = builtInCatalog();
  const agents = await loadAll('agents', modules.agents, catalog.agents, agentOf);
  const environments = await loadAll('environments', modules.environments, catalog.environments, environmentOf);
  const toolsets = await loadAll('tools', modules.tools, catalog.toolsets, toolsetFrom);
  const handlers = await loadAll('handlers', modules.handlers ?? {}, new Map<string, NamedHandler>(), handlerOf);
  const python = await loadPythonPlugins(modules.python ?? {});
  try {
    const allHandlers = distinctHandlers([...handlers.values(), ...python.handlers]);
    const all = {
      agents: withPython(agents, python.agents),
      environments: withPython(environments, python.environments),
      toolsets,
      close: python.close,
    };
    if (allHandlers.length === 0) return all;
    const handler = handlerAgent(allHandlers);
    return { ...all, agents: new Map([...all.agents, [handler.name, handler]]) };
  } catch (error) {
    await python.close();
    throw error;
  }
}

/** Adds what Python plug-ins define. Throws `setup_failed` for a name that is taken. */
function withPython<T extends { readonly name: string }>(
  others: ReadonlyMap<string, T>,
  definitions: readonly T[],
): ReadonlyMap<string, T> {
  const taken = definitions.find(({ name }) => others.has(name));
  if (taken !== undefined) {
    throw new FloeError('setup_failed', `python.${taken.name}: there is another ${taken.name}; choose another name`);
  }
  return new Map([...others, ...definitions.map((definition) => [definition.name, definition] as const)]);
}

type NamedHandler = HandlerDefinition & { readonly name: string };

/** Returns the handlers. Throws `setup_failed` when two of them are for the same data source. */
function distinctHandlers(handlers: readonly NamedHandler[]): readonly NamedHandler[] {
  const names = new Map<string, string>();
  for (const { name, dataSources } of handlers) {
    for (const source of dataSources) {
      const other = names.get(source);
      if (other !== undefined) {
        throw new FloeError('setup_failed', `the handlers ${other} and ${name} are both for data source ${source}`);
      }
      names.set(source, name);
    }
  }
  return handlers;
}

async function loadAll<T extends { readonly name: string }>(
  kind: ModuleKind,
  modules: Readonly<Record<string, string>>,
  builtIn: ReadonlyMap<string, T>,
  read: (exported: unknown, name: string) => T | null,
): Promise<ReadonlyMap<string, T>> {
  const all = new Map(builtIn);
  for (const [name, path] of Object.entries(modules)) {
    const key = `${kind}.${name}`;
    if (builtIn.has(name)) throw new FloeError('setup_failed', `${key}: floe itself has ${name}; choose another name`);
    const definition = read(await exportOf(kind, key, path), name);
    if (definition === null) {
      const { names, made } = EXPORTS[kind];
      const message = `${key}: ${path} exports no ${made} as ${names.join(' or ')}`;
      throw new FloeError('setup_failed', message, { key, path });
    }
    all.set(name, { ...definition, name });
  }
  return all;
}

/** Kinds of plug-ins that are modules. */
export type ModuleKind = keyof typeof EXPORTS;

/** Names of the exports of a module, the default and others that stand for it, and what an export is made with. */
const EXPORTS = {
  agents: { names: ['default', 'agent'], made: 'agent (defineAgent) or class of runners (AgentRunner)' },
  environments: { names: ['default', 'environment'], made: 'environment (defineEnvironment)' },
  handlers: { names: ['default', 'handler'], made: 'handler (defineHandler)' },
  tools: { names: ['default', 'tool', 'toolset'], made: 'tool (defineTool) or toolset (defineToolset)' },
} as const;

/** Returns the export of a module that defines a plug-in; `undefined` when it has none of the names. */
async function exportOf(kind: ModuleKind, key: string, path: string): Promise<unknown> {
  try {
    const module = (await import(pathToFileURL(resolve(path)).href)) as Readonly<Record<string, unknown>>;
    const name = EXPORTS[kind].names.find((candidate) => candidate in module);
    return name === undefined ? undefined : module[name];
  } catch (error) {
    const message = messageOf(error);
    throw new FloeError('setup_failed', `${key}: ${path} cannot be loaded: ${message}`, { key, path }, error);
  }
}

function agentOf(exported: unknown, name: string): AgentDefinition | null {
  if (isRunnerClass(exported)) return runnerAgent(name, exported);
  return hasFunctions(exported, 'run') && 'settings' in exported ? (exported as unknown as AgentDefinition) : null;
}

function environmentOf(exported: unknown): EnvironmentDefinition | null {
  return hasFunctions(exported, 'create') ? (exported as unknown as EnvironmentDefinition) : null;
}

function toolsetFrom(exported: unknown): ToolsetDefinition | null {
  if (hasFunctions(exported, 'open')) return exported as unknown as ToolsetDefinition;
  return hasFunctions(exported, 'run') && 'parameters' in exported ? toolsetOf(exported as unknown as AnyTool) : null;
}

function handlerOf(exported: unknown): NamedHandler | null {
  const isHandler = ['init', 'run', 'eval'].every((stage) => hasFunctions(exported, stage));
  if (!isHandler || !Array.isArray((exported as { dataSources?: unknown }).dataSources)) return null;
  return exported as NamedHandler;
}

function hasFunctions(value: unknown, name: string): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && typeof (value as Record<string, unknown>)[name] === 'function';
}
