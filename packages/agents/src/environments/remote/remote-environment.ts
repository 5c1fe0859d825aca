import { backoffMs, FloeError, isRecord, parseJson, sleep, systemClock } from '@floe-rl/core';
import type { AssistantMessage, ChatMessage, ChatTool, Content, ToolCall } from '@floe-rl/core/schema';
import type { Environment, EnvironmentServices, Observation, StepResult } from '../environment.ts';
import { type RemoteFields, type RemoteKind, type RemoteService, remoteService, worldFailed } from './service.ts';

/** Pauses between attempts to start an episode. */
const BACKOFF = { baseMs: 100, maxMs: 2_000 };
/** Maximum number of tool calls of one reply that are made. */
const MAX_CALLS = 16;
/** Maximum number of values in the arguments of a tool call. */
const MAX_VALUES = 10_000;

/** What a world answers to one action. */
export type WorldAnswer = {
  readonly content: Content;
  readonly reward: number;
  readonly end: 'terminated' | 'truncated' | null;
  /** Whether the world could not do what the agent asked for; default: false. */
  readonly isError?: boolean;
};

/** What a world answers to a whole reply. `messages` answer every tool call of it. */
export type Acted = Omit<WorldAnswer, 'content'> & {
  readonly messages: readonly ChatMessage[];
  readonly metrics?: Readonly<Record<string, number>>;
};

/**
 * An environment whose world is at a server of another system. An episode starts again until it has started or `connect_seconds` have passed,
 * because servers may have no free place at first; from then on, a server that fails ends it.
 */
export abstract class RemoteEnvironment<Fields extends RemoteFields> implements Environment {
  protected readonly config: Fields;
  protected readonly service: RemoteService;
  protected readonly signal: AbortSignal;
  private steps = 0;
  private invalidActions = 0;
  private end: 'terminated' | 'truncated' | null = null;

  protected constructor(kind: RemoteKind, config: Fields, { signal, services }: EnvironmentServices) {
    this.config = config;
    this.service = remoteService(kind, config.service, services);
    this.signal = signal;
  }

  async reset(seed: number): Promise<Observation | null> {
    this.steps = 0;
    this.invalidActions = 0;
    this.end = null;
    const startMs = systemClock.monotonicMs();
    for (let failures = 1; ; failures++) {
      await this.leave();
      try {
        return await this.start(seed);
      } catch (error) {
        const pauseMs = backoffMs(BACKOFF, failures);
        const isLate = systemClock.monotonicMs() + pauseMs - startMs > this.config.connect_seconds * 1_000;
        if (isLate || !FloeError.is(error) || error.code !== 'peer_unreachable') throw error;
        await sleep(systemClock, pauseMs, this.signal);
      }
    }
  }

  async step(reply: AssistantMessage): Promise<StepResult> {
    if (this.end !== null) return this.result({ messages: allAnswered(reply, OVER), reward: 0, end: this.end });
    this.steps++;
    const acted = await this.act(reply);
    if (acted.isError === true) this.invalidActions++;
    this.end = acted.end;
    if (this.end !== null || this.steps < this.config.max_steps) return this.result(acted);
    this.end = 'truncated';
    const final = await this.judge();
    return this.result({ ...acted, ...final, reward: acted.reward + final.reward, end: 'truncated' });
  }

  async close(): Promise<void> {
    // The server notices by itself that a client that it cannot answer has left.
    await this.leave().catch(() => undefined);
  }

  /** Starts an episode at the server. */
  protected abstract start(seed: number): Promise<Observation | null>;

  /** Plays a reply. Any reply has an answer. */
  protected abstract act(reply: AssistantMessage): Promise<Acted>;

  /** Ends the episode at the server, if there is one. */
  protected abstract leave(): Promise<void>;

  /** Returns the reward of an episode that has used up its steps. */
  protected async judge(): Promise<Pick<Acted, 'reward' | 'metrics'>> {
    return { reward: 0 };
  }

  /** Makes the calls of a reply in their order. Those after the end of the episode are not made. */
  protected async calls(
    calls: readonly ToolCall[],
    tools: readonly ChatTool[],
    call: (name: string, args: Record<string, unknown>) => Promise<WorldAnswer>,
  ): Promise<Acted> {
    const messages: ChatMessage[] = [];
    let reward = 0;
    let end: Acted['end'] = null;
    let isError = false;
    for (const [index, { id, function: asked }] of calls.entries()) {
      const answer = await this.answerTo(asked, { tools, call, refusal: refusalOf(index, end) });
      messages.push({ role: 'tool', tool_call_id: id, content: answer.content });
      reward += answer.reward;
      end = answer.end ?? end;
      isError ||= answer.isError === true;
    }
    return { messages, reward, end, isError };
  }

  /** Answers a reply that has no tool call, in a world that needs one. */
  protected reminder(tools: readonly ChatTool[]): Acted {
    const names = tools.map(({ function: { name } }) => name).join(', ');
    const content = `The reply calls no tool. Call one of the tools: ${names}.`;
    return { messages: [{ role: 'user', content }], reward: 0, end: null, isError: true };
  }

  /** Returns what becomes of an error in the code of the world. Throws it when it ends the episode. */
  protected worldError(errors: 'end' | 'observe', problem: string): WorldAnswer {
    if (errors === 'end') throw worldFailed(this.service, problem);
    return { content: `Error: ${problem}`, reward: 0, end: null, isError: true };
  }

  private async answerTo(
    { name, arguments: json }: ToolCall['function'],
    { tools, call, refusal }: Answering,
  ): Promise<WorldAnswer> {
    const refused = (content: string): WorldAnswer => ({ content, reward: 0, end: null, isError: true });
    if (refusal !== null) return { ...refused(refusal), isError: false };
    const names = tools.map((tool) => tool.function.name);
    if (!names.includes(name)) return refused(`There is no such tool. The tools are: ${names.join(', ')}.`);
    const args = argumentsOf(json);
    if (args === null) return refused(`The arguments of ${name} are no JSON object.`);
    return call(name, args);
  }

  private result({ messages, reward, end, metrics }: Acted): StepResult {
    return {
      messages,
      reward,
      terminated: end === 'terminated',
      truncated: end === 'truncated',
      metrics: { ...metrics, invalid_actions: this.invalidActions },
    };
  }
}

type Answering = {
  readonly tools: readonly ChatTool[];
  call(name: string, args: Record<string, unknown>): Promise<WorldAnswer>;
  readonly refusal: string | null;
};

const OVER = 'Not done: the episode has ended.';

function refusalOf(index: number, end: Acted['end']): string | null {
  if (end !== null) return OVER;
  return index >= MAX_CALLS ? `Not done: at most ${MAX_CALLS} calls of a reply are made.` : null;
}

/** Returns messages that answer a reply, or each of its calls, with the same content. */
export function allAnswered({ tool_calls: calls = [] }: AssistantMessage, content: Content): ChatMessage[] {
  if (calls.length === 0) return [{ role: 'user', content }];
  return calls.map(({ id }) => ({ role: 'tool', tool_call_id: id, content }));
}

/** Returns messages that answer a reply in a world without tools. */
export function answeredInText({ tool_calls: calls = [] }: AssistantMessage, content: Content): ChatMessage[] {
  const refusal = 'There are no tools here. Write the action as text.';
  const refusals = calls.map(({ id }): ChatMessage => ({ role: 'tool', tool_call_id: id, content: refusal }));
  return [...refusals, { role: 'user', content }];
}

/** Returns the arguments of a call; `null` when they are no JSON object. */
function argumentsOf(json: string): Record<string, unknown> | null {
  try {
    const value = parseJson(json, MAX_VALUES);
    return isRecord(value) ? value : null;
  } catch (error) {
    if (FloeError.is(error)) return null;
    throw error;
  }
}
