import { FloeError, fieldError, parseAs } from '@floe-rl/core';
import type { TaskEnvironment, ToolSpec } from '@floe-rl/core/schema';
import type { Catalog } from './catalog.ts';

/** The parts of a task that name plug-ins. */
type PluginUse = {
  readonly agent: string;
  readonly options: Readonly<Record<string, unknown>>;
  readonly tools: readonly ToolSpec[] | null;
  readonly environment: Omit<TaskEnvironment, 'seed'> | null;
  /** Whether the session has a sandbox; `null` when its node decides that. */
  readonly hasBox: boolean | null;
  /** Pools of engines that the agent may use; `null` for any. */
  readonly enginePools: readonly string[] | null;
};

/**
 * Checks the agent, the tools and the environment of a task. `others` are names of the operator's plug-ins, which only nodes can load and
 * check. Throws `unknown_agent`, `unknown_tool` or `unknown_environment`, or `schema_violation` for settings that do not fit.
 */
export function checkPluginUse(use: PluginUse, catalog: Catalog, others: ReadonlySet<string>): void {
  const agent = find('agent', 'agent.settings.agent', use.agent, catalog.agents, others);
  if (agent !== null) {
    const settings = parseAs(agent.settings, use.options, 'agent.settings.options', 'agent.settings.options');
    for (const pool of agent.enginePools?.(settings) ?? []) {
      if (use.enginePools?.includes(pool) === false) {
        throw fieldError(
          'engine.extra_pools',
          `the agent ${use.agent} uses the engine pool ${pool}, which is not among them`,
        );
      }
    }
    if (agent.needs?.environment === true && use.environment === null) {
      throw fieldError('environment', `the agent ${use.agent} needs one`);
    }
    if (agent.needs?.box === true && use.hasBox === false) {
      throw fieldError(
        'runtime.backend',
        `the agent ${use.agent} works in a sandbox; choose another back end than none`,
      );
    }
  }
  for (const [index, { name, config }] of (use.tools ?? []).entries()) {
    const path = `agent.settings.tools.${index}`;
    const toolset = find('tool', path, name, catalog.toolsets, others);
    if (toolset !== null) parseAs(toolset.config, config, `${path}.config`, `${path}.config`);
  }
  if (use.environment === null) return;
  const { type, config } = use.environment;
  const environment = find('environment', 'environment.type', type, catalog.environments, others);
  if (environment !== null) parseAs(environment.config, config, 'environment.config', 'environment.config');
}

/** Returns what has the name; `null` when only nodes have it. */
function find<T>(
  kind: 'agent' | 'tool' | 'environment',
  path: string,
  name: string,
  builtIn: ReadonlyMap<string, T>,
  others: ReadonlySet<string>,
): T | null {
  const found = builtIn.get(name);
  if (found !== undefined) return found;
  if (others.has(name)) return null;
  const known = [...builtIn.keys(), ...others];
  throw new FloeError(`unknown_${kind}`, `${path}: no ${name}; there are: ${known.join(', ')}`, { path, known });
}
