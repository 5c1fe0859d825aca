import { FloeError } from '@floe-rl/core';
import type { AgentDefinition } from '../loop/episode.ts';
import { codeAgent } from './code.ts';
import { computerUseAgent } from './computer-use.ts';
import { deepResearchAgent } from './deep-research.ts';
import { gymAgent } from './gym.ts';
import { handlerAgent } from './handler.ts';
import { mathAgent } from './math.ts';
import { memoryAgent } from './memory.ts';
import { multiAgent } from './multi.ts';
import { searchAgent } from './search.ts';
import { stemAgent } from './stem.ts';
import { sweAgent } from './swe.ts';
import { terminalAgent } from './terminal.ts';
import { toolCallAgent } from './tool-call.ts';

/** Returns the agents of floe by their names. */
export function builtInAgents(): ReadonlyMap<string, AgentDefinition> {
  const agents: readonly AgentDefinition[] = [
    codeAgent,
    computerUseAgent,
    deepResearchAgent,
    gymAgent,
    handlerAgent([]),
    mathAgent,
    memoryAgent,
    searchAgent,
    stemAgent,
    sweAgent,
    terminalAgent,
    toolCallAgent,
    multiAgent,
  ];
  return new Map(agents.map((agent) => [agent.name, agent]));
}

/** Returns the agent `name`. Throws `unknown_agent` with the names of all when there is none. */
export function findAgent(name: string, agents: ReadonlyMap<string, AgentDefinition>): AgentDefinition {
  const agent = agents.get(name);
  if (agent !== undefined) return agent;
  const known = [...agents.keys()];
  throw new FloeError('unknown_agent', `agent.settings.agent: no ${name}; there are: ${known.join(', ')}`, { known });
}
