import type { AssistantMessage, ChatMessage } from '@floe-rl/core/schema';
import type {
  Environment,
  EnvironmentDefinition,
  Observation,
  StepResult,
} from '../../src/environments/environment.ts';
import { parseEnvironmentConfig } from '../../src/environments/registry.ts';

export function createEnvironment(definition: EnvironmentDefinition, config: unknown = {}): Environment {
  const { signal } = new AbortController();
  return definition.create(parseEnvironmentConfig(definition, config), { signal });
}

/** Starts an episode. Throws an Error when the environment has no episode for the seed. */
export async function startEpisode(
  definition: EnvironmentDefinition,
  config: unknown = {},
  seed = 0,
): Promise<{ environment: Environment; first: Observation }> {
  const environment = createEnvironment(definition, config);
  const first = await environment.reset(seed);
  if (first === null) throw new Error(`${definition.name} has no episode for the seed ${seed}`);
  return { environment, first };
}

/** Plays the replies in order until the episode ends. Returns the results of the steps. */
export async function playReplies(
  environment: Environment,
  replies: readonly AssistantMessage[],
): Promise<StepResult[]> {
  const results: StepResult[] = [];
  for (const reply of replies) {
    const result = await environment.step(reply);
    results.push(result);
    if (result.terminated || result.truncated) break;
  }
  return results;
}

export function scoreOf(results: readonly StepResult[]): number {
  return results.reduce((sum, { reward }) => sum + reward, 0);
}

/** Returns a reply that calls a tool. */
export function call(name: string, args: unknown): AssistantMessage {
  return calls([name, args]);
}

/** Returns a reply that calls several tools. A text is sent as it is, anything else as JSON. */
export function calls(...list: readonly (readonly [name: string, args: unknown])[]): AssistantMessage {
  const tool_calls = list.map(([name, args], i) => ({
    id: `id_${i}`,
    type: 'function' as const,
    function: { name, arguments: typeof args === 'string' ? args : JSON.stringify(args) },
  }));
  return { role: 'assistant', content: null, tool_calls };
}

export function says(content: string): AssistantMessage {
  return { role: 'assistant', content };
}

/** Returns the texts of messages. */
export function textsOf(messages: readonly ChatMessage[]): string[] {
  return messages.map(({ content }) => (typeof content === 'string' ? content : ''));
}
