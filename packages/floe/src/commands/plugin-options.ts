import type { PluginModules } from '@floe-rl/agents';
import { FloeError } from '@floe-rl/core';
import type { McpServer } from '@floe-rl/core/schema';
import type { Command } from 'commander';
import { readSettings } from './config-file.ts';

/** Options for the settings of a node's operator, in commands that run without a node. */
export type PluginOptions = { nodeConfig?: string; service?: string[] };

/** The operator's settings of a node for agents, environments and tools. */
export type NodePlugins = {
  readonly modules: PluginModules;
  readonly services: Readonly<Record<string, string>>;
  readonly mcpServers: readonly McpServer[];
};

export function withPluginOptions(command: Command): Command {
  return command
    .option('--node-config <file>', 'config file of a node, whose section node.plugins is used')
    .option(
      '--service <name=value>',
      'setting as in node.plugins.services, such as openenv.echo=http://127.0.0.1:8000; may be repeated',
      (value: string, earlier: string[] = []) => [...earlier, value],
    );
}

/** Returns the settings that the options name. Throws the errors of `readSettings`, and `bad_request` for a service without a value. */
export async function nodePlugins({ nodeConfig, service = [] }: PluginOptions): Promise<NodePlugins> {
  const { plugins } = (await readSettings(nodeConfig === undefined ? {} : { config: nodeConfig })).node;
  const { agents, environments, tools, handlers, python, services, mcp_servers: mcpServers } = plugins;
  const given = Object.fromEntries(service.map(serviceOption));
  return {
    modules: { agents, environments, tools, handlers, python },
    services: { ...services, ...given },
    mcpServers,
  };
}

function serviceOption(text: string): [string, string] {
  const [, name, value] = /^([^=]+)=(.+)$/s.exec(text) ?? [];
  if (name === undefined || value === undefined) {
    throw new FloeError('bad_request', `--service: ${text} is not NAME=VALUE`);
  }
  return [name, value];
}
