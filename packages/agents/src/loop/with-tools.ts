import { FloeError } from '@floe-rl/core';
import type { AssistantMessage, ChatMessage, ChatTool, ToolCall } from '@floe-rl/core/schema';
import type { Environment, Observation, StepResult } from '../environments/environment.ts';
import { declarationOf } from '../tools/checked-arguments.ts';
import type { AnyTool } from '../tools/tool.ts';
import { callHints, hintingOf, withHints } from './call-hints.ts';
import { checkCalls, isBroken } from './calls.ts';
import type { Episode } from './episode.ts';
import { answersOf, type CallEpisode, type CallOutcome, runCalls } from './run-calls.ts';

/** The parts of an episode that an environment with tools uses. */
export type ToolsEpisode = CallEpisode & Pick<Episode, 'hints'>;

/**
 * Returns an environment in which the player also has tools, such as Python for computations. A reply that only calls tools is answered
 * without a step of the environment; of any other reply, the environment gets what is not a call of a tool. Rewards of tools count in the
 * score. Calls of tools that are broken or fail are hinted at. Throws `unsupported` for a tool that changes the agent's own state, which an environment cannot reach.
 */
export function withTools(environment: Environment, tools: readonly AnyTool[], episode: ToolsEpisode): Environment {
  const ofAgent = tools.find(({ effect }) => effect === 'agent');
  if (ofAgent !== undefined) {
    const message = `agent.settings.tools: ${ofAgent.name} changes the agent itself, which a player of an environment cannot`;
    throw new FloeError('unsupported', message);
  }
  return new EnvironmentWithTools(environment, tools, episode);
}

class EnvironmentWithTools implements Environment {
  private readonly environment: Environment;
  private readonly tools: ReadonlyMap<string, AnyTool>;
  private readonly declarations: readonly ChatTool[];
  private readonly episode: ToolsEpisode;
  /** The observation in which the player acts. */
  private last: Observation = { messages: [] };

  constructor(environment: Environment, tools: readonly AnyTool[], episode: ToolsEpisode) {
    this.environment = environment;
    this.tools = new Map(tools.map((tool) => [tool.name, tool]));
    this.declarations = tools.map(declarationOf);
    this.episode = episode;
  }

  async reset(seed: number): Promise<Observation | null> {
    const observation = await this.environment.reset(seed);
    if (observation === null) return null;
    this.last = observation;
    return { ...observation, tools: this.allTools(observation.tools ?? []) };
  }

  async step(action: AssistantMessage): Promise<StepResult> {
    const calls = action.tool_calls ?? [];
    const own = calls.filter((call) => this.tools.has(call.function.name));
    const others = calls.filter((call) => !own.includes(call));
    const outcomes = own.length === 0 ? [] : await this.runOwn(own);
    if (own.length > 0 && others.length === 0) return this.answered(outcomes);
    const result = await this.environment.step(own.length === 0 ? action : { ...action, tool_calls: others });
    this.last = result;
    return this.withOutcomes(result, outcomes);
  }

  close(): Promise<void> {
    return this.environment.close();
  }

  private async runOwn(calls: readonly ToolCall[]): Promise<readonly CallOutcome[]> {
    const checked = checkCalls(calls, this.tools);
    for (const call of checked) if (isBroken(call)) this.episode.count(`broken.${call.kind}`);
    return runCalls(checked, this.episode);
  }

  /** Returns the answers to calls of tools, with hints. */
  private answersTo(outcomes: readonly CallOutcome[]): ChatMessage[] {
    const calls = outcomes.map(({ call }) => call);
    const hints = callHints(calls, outcomes, [...this.tools.keys()], hintingOf(this.episode));
    return withHints(answersOf(outcomes), hints);
  }

  /** Returns the result of a reply that only called tools: the world stays as it is, and the same player acts next. */
  private answered(outcomes: readonly CallOutcome[]): StepResult {
    const { stateHash, seat } = this.last;
    return {
      messages: this.answersTo(outcomes),
      reward: rewardOf(outcomes),
      terminated: outcomes.some(({ end }) => end !== null),
      truncated: false,
      ...(stateHash === undefined ? {} : { stateHash }),
      ...(seat === undefined ? {} : { seat }),
    };
  }

  private withOutcomes(result: StepResult, outcomes: readonly CallOutcome[]): StepResult {
    const tools = result.tools === undefined ? {} : { tools: this.allTools(result.tools) };
    if (outcomes.length === 0) return { ...result, ...tools };
    const ours = this.answersTo(outcomes);
    const reward = result.reward + rewardOf(outcomes);
    const isNextPlayers = result.seat !== undefined && !result.terminated && !result.truncated;
    const messages = isNextPlayers
      ? { answers: [...ours, ...(result.answers ?? [])] }
      : { messages: [...ours, ...result.messages] };
    return { ...result, ...tools, ...messages, reward };
  }

  private allTools(ofEnvironment: readonly ChatTool[]): ChatTool[] {
    const taken = ofEnvironment.find((tool) => this.tools.has(tool.function.name))?.function.name;
    if (taken === undefined) return [...ofEnvironment, ...this.declarations];
    throw new FloeError('schema_violation', `agent.settings.tools: the environment has a tool ${taken} too`);
  }
}

function rewardOf(outcomes: readonly CallOutcome[]): number {
  return outcomes.reduce((sum, { reward }) => sum + (reward ?? 0), 0);
}
