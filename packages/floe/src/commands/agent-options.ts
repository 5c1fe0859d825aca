import { agentSpecSchema, type TaskRequestInput } from '@floe-rl/core/schema';
import type { Command } from 'commander';
import { countOption } from './options.ts';
import { readYamlFile } from './yaml-file.ts';

/** Options that name the agent of tasks. */
export type AgentOptions = { harness: string; agent?: string; customShell?: string; maxTurns?: string };

export function withAgentOptions(command: Command): Command {
  return command
    .option('--harness <name>', 'harness that is the agent', 'pi')
    .option('--agent <file>', 'YAML file with the whole field `agent` of a task, instead of --harness')
    .option('--custom-shell <command>', 'command of the shell harness')
    .option('--max-turns <n>', 'maximum number of model calls of an agent');
}

/** Returns the agent that the options name. */
export async function agentOf(options: AgentOptions): Promise<TaskRequestInput['agent']> {
  if (options.agent !== undefined) return readYamlFile(options.agent, agentSpecSchema);
  return {
    harness: options.harness,
    ...(options.customShell === undefined ? {} : { custom_shell: options.customShell }),
    ...(options.maxTurns === undefined ? {} : { max_turns: countOption('--max-turns', options.maxTurns) }),
  };
}
