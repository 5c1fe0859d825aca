import { canonicalJson, FloeError, parseAs } from '@floe-rl/core';
import type {
  AssistantMessage,
  ChatMessage,
  ChatTool,
  EpisodeStatus,
  FinishReason,
  ToolChoice,
  Usage,
} from '@floe-rl/core/schema';
import { z } from 'zod';
import type { Environment } from '../environments/environment.ts';
import { ENVIRONMENTS, findEnvironment, parseEnvironmentConfig } from '../environments/registry.ts';
import { REMOTE_ENVIRONMENTS } from '../environments/remote/registry.ts';
import type { AskOptions, Conversation } from '../tools/conversation.ts';
import type { AnyTool } from '../tools/tool.ts';
import { mainConversation } from './conversation.ts';
import type { AgentDefinition, Episode, EpisodeResult } from './episode.ts';
import { httpModel } from './http-model.ts';
import { pushInstruction, runLoop } from './loop.ts';
import type { Model } from './model.ts';
import { playEnvironment } from './play.ts';

const servicesSchema = z.record(z.string(), z.string());

/** How a job ended, in ROLL's words and in floe's. `Truncated`, which ROLL lacks, is a job that a limit ended. */
const STATUSES: Readonly<Record<JobStatus, EpisodeStatus>> = {
  Finished: 'finished',
  Truncated: 'truncated',
  Failed: 'failed',
  RunnerError: 'failed',
  NoData: 'no_data',
  Timeout: 'timeout',
};
export type JobStatus = 'Finished' | 'Truncated' | 'Failed' | 'RunnerError' | 'NoData' | 'Timeout';

/** What a runner returns of one job. */
export type JobResult = {
  readonly status: JobStatus;
  /** Score of the episode; `null` or absent when it has none. A job that failed has no score, whatever it says. */
  readonly score?: number | null;
  /** Score of each reply of the main agent, in their order. */
  readonly stepScores?: readonly number[];
  readonly seatScores?: Readonly<Record<string, number>>;
  /** Why the job ended, in a few words. */
  readonly agentExitReason?: string;
  /** Final answer of the agent, for evaluators of answers. */
  readonly answer?: string;
  readonly metrics?: Readonly<Record<string, number>>;
  /** Rewards of replies by their ids, where the runner knows these; instead of `stepScores`. */
  readonly replyRewards?: EpisodeResult['replyRewards'];
};

/** A reply of the model, in the form of OpenAI's API. */
export type ChatCompletion = {
  readonly id: string;
  readonly object: 'chat.completion';
  readonly model: string;
  readonly choices: readonly {
    readonly index: 0;
    readonly message: AssistantMessage;
    readonly finish_reason: FinishReason;
  }[];
  readonly usage: Usage;
};

/** Settings of a runner: a JSON object. */
export type RunnerConfig = Readonly<Record<string, unknown>>;

/**
 * An agent in the form of ROLL's abstraction: a class that does one job for a seed. A module that exports a subclass as its default is an
 * agent of floe. It may also be used by itself: `llmRequest` then calls the model at `baseUrl` over HTTP.
 *
 * An instance does one job at a time. By default there is an instance for each episode. Instances of a class with `static reused = true` do
 * further jobs with the same configuration. `setup` then runs once for each instance, and `baseUrl` and `envId` are the episode's.
 */
export abstract class AgentRunner {
  static readonly reused: boolean = false;
  /** Base URL of the model, below which are the paths of OpenAI's API. */
  baseUrl: string;
  /** Key of the session, which calls over HTTP must carry as bearer token. */
  envId: string;
  readonly envConfig: RunnerConfig;
  /** The episode that runs; `null` where the runner is used by itself. */
  protected episode: Episode | null = null;
  /** The model at `baseUrl`, for a runner that is used by itself. */
  private ownModel: Model | null = null;

  constructor(baseUrl: string, envId: string, envConfig: RunnerConfig = {}) {
    this.baseUrl = baseUrl;
    this.envId = envId;
    this.envConfig = envConfig;
  }

  /** Runs before the first job. */
  async setup(): Promise<void> {}

  /** Does one job. Equal seeds start equal jobs. */
  abstract runJob(seed: number): Promise<JobResult>;

  /** Frees what the runner uses. Runs after the last job, unless the process of the runner ended before. */
  async teardown(): Promise<void> {}

  /** Binds the runner to an episode; `null` releases it. Called by floe. */
  bind(episode: Episode | null): void {
    this.episode = episode;
    if (episode?.endpoint === undefined) return;
    this.baseUrl = episode.endpoint.baseUrl;
    this.envId = episode.endpoint.apiKey;
  }

  /**
   * Lets the model reply to a conversation, one request at a time. In an episode the call goes the shortest way, else to `baseUrl` with
   * `envId` as key. The messages are the whole conversation.
   */
  protected async llmRequest(
    messages: readonly ChatMessage[],
    tools: readonly ChatTool[] = [],
    toolChoice?: ToolChoice,
  ): Promise<ChatCompletion> {
    const conversation = this.episode?.conversation ?? this.ownConversation(new AbortController().signal);
    const options = { tools, ...(toolChoice === undefined ? {} : { toolChoice }) };
    return completeChat(conversation, messages, options, this.modelName);
  }

  /** Returns a new conversation with the model at `baseUrl`. */
  protected ownConversation(signal: AbortSignal): Episode['conversation'] {
    const { baseUrl, envId, modelName } = this;
    this.ownModel ??= httpModel({ baseUrl, apiKey: envId, model: modelName });
    return mainConversation(this.ownModel, signal);
  }

  /** Name of the model in requests over HTTP: `model` of the configuration, or the name of the model in sessions. */
  protected get modelName(): string {
    const { model } = this.envConfig;
    return typeof model === 'string' ? model : MODEL_NAME;
  }
}

/** The name of the model in sessions. */
const MODEL_NAME = 'policy';

/**
 * Lets the model reply to a whole conversation. Only the messages that continue what the model has seen are sent. Rejects as {@link
 * Conversation.ask}.
 */
export async function completeChat(
  conversation: Conversation,
  messages: readonly ChatMessage[],
  options: AskOptions,
  model = MODEL_NAME,
): Promise<ChatCompletion> {
  const known = conversation.messages;
  const continues = known.length <= messages.length && known.every((message, i) => isEqual(message, messages[i]));
  if (continues) conversation.push(...messages.slice(known.length));
  else conversation.replace(messages);
  const { completionId, message, finishReason, usage } = await conversation.ask(options);
  const choices = [{ index: 0 as const, message, finish_reason: finishReason }];
  return { id: completionId, object: 'chat.completion', model, choices, usage };
}

function isEqual(message: ChatMessage, other: ChatMessage | undefined): boolean {
  return message === other || (other !== undefined && canonicalJson(message) === canonicalJson(other));
}

/**
 * Plays an environment: the task's or, when the task has none, the environment that `type` and `config` of the configuration name. Subclasses
 * may create another environment. Each reply of the model is an action.
 */
export class GEMRunner extends AgentRunner {
  async runJob(seed: number): Promise<JobResult> {
    return this.inEpisode(seed, async (episode) => {
      const options = { history: 'append', summarySteps: 0, maxTokensPerStep: null } as const;
      return jobResult(await playEnvironment(episode, options));
    });
  }

  /**
   * Creates the environment of a runner whose task has none; `null` for none. Servers of environments are the node's or, where the runner is
   * used by itself, `services` of the configuration.
   */
  protected createEnvironment(signal: AbortSignal): Environment | null {
    const { type, config = {}, services: own = {} } = this.envConfig;
    if (typeof type !== 'string') return null;
    const definition = findEnvironment(type, [...ENVIRONMENTS, ...REMOTE_ENVIRONMENTS]);
    const services = this.episode?.services ?? parseAs(servicesSchema, own, 'services', 'services');
    return definition.create(parseEnvironmentConfig(definition, config), { signal, services });
  }

  /** The tools of a runner; default: the tools of the task. */
  protected tools(): readonly AnyTool[] {
    return this.episode?.tools ?? [];
  }

  /** Runs a job in its episode, or in one of its own where the runner is used by itself. */
  protected async inEpisode(seed: number, run: (episode: Episode) => Promise<JobResult>): Promise<JobResult> {
    const episode = this.episode ?? this.ownEpisode(seed);
    const created = episode.environment === null ? this.createEnvironment(episode.signal) : null;
    try {
      return await run({ ...episode, environment: episode.environment ?? created, tools: this.tools() });
    } finally {
      await created?.close();
    }
  }

  private ownEpisode(seed: number): Episode {
    const { signal } = new AbortController();
    const { instruction, max_turns: turns } = this.envConfig;
    const limits = { turns: typeof turns === 'number' ? turns : null, contextTokens: null };
    const conversation = this.ownConversation(signal);
    const replies = (): number => conversation.messages.filter(({ role }) => role === 'assistant').length;
    return {
      ...{ seed, conversation, signal, limits, systemPrompt: null, metadata: {}, settings: {}, hints: true },
      ...{ box: null, environment: null, tools: [], toolInstructions: [], services: {} },
      instruction: typeof instruction === 'string' ? instruction : '',
      left: () => ({ ...limits, turns: limits.turns === null ? null : Math.max(0, limits.turns - replies()) }),
      count: () => {},
      measure: () => {},
    };
  }
}

/** Works with tools on an instruction until it answers. The instruction is the task's, or `instruction` of the configuration. */
export class ToolCallRunner extends GEMRunner {
  override async runJob(seed: number): Promise<JobResult> {
    return this.inEpisode(seed, async (episode) => {
      pushInstruction(episode);
      return jobResult(await runLoop(episode, { answersInText: true }));
    });
  }
}

/** Converts the result of an episode to the result of a job. Rewards of replies are the scores of its steps. */
function jobResult({ status, score, seatScores, reason, answer, replyRewards = [] }: EpisodeResult): JobResult {
  const [word] = Object.entries(STATUSES).find(([, own]) => own === status) ?? ['Failed'];
  return {
    status: word as JobStatus,
    score,
    agentExitReason: reason,
    ...(seatScores === undefined ? {} : { seatScores }),
    ...(answer === undefined ? {} : { answer }),
    ...(replyRewards.length === 0 ? {} : { replyRewards }),
  };
}

/** The constructor of a runner, which a module may export instead of an agent. */
export type RunnerClass = {
  new (baseUrl: string, envId: string, envConfig: RunnerConfig): Runner;
  readonly reused?: boolean;
};

/** What floe needs of a runner. A runner need not extend {@link AgentRunner}. */
type Runner = {
  setup?(): Promise<void>;
  runJob(seed: number): Promise<JobResult>;
  teardown?(): Promise<void>;
  bind?(episode: Episode | null): void;
};

/** Whether a value is a class of runners. */
export function isRunnerClass(value: unknown): value is RunnerClass {
  return typeof value === 'function' && typeof value.prototype?.runJob === 'function';
}

const settingsSchema: z.ZodType<RunnerConfig> = z.record(z.string(), z.unknown());

/** Returns the agent whose episodes are jobs of the runners of a class. Its settings are the configuration of the runners. */
export function runnerAgent(name: string, Class: RunnerClass): AgentDefinition<RunnerConfig> {
  /** Runners that wait for their next job, by their configuration. */
  const idle = new Map<string, Runner[]>();
  return {
    name,
    description: `jobs of the runner ${Class.name}`,
    settings: settingsSchema,
    async run(episode) {
      const config = episode.settings;
      const key = canonicalJson(config);
      const { baseUrl = '', apiKey = '' } = episode.endpoint ?? {};
      const waiting = Class.reused === true ? idle.get(key)?.pop() : undefined;
      const runner = waiting ?? new Class(baseUrl, apiKey, config);
      let isReusable = false;
      try {
        runner.bind?.(episode);
        if (waiting === undefined) await runner.setup?.();
        const result = episodeResult(await runner.runJob(episode.seed), episode);
        isReusable = Class.reused === true && !episode.signal.aborted;
        return result;
      } finally {
        runner.bind?.(null);
        if (isReusable) idle.set(key, [...(idle.get(key) ?? []), runner]);
        else await runner.teardown?.();
      }
    },
  };
}

/** Converts the result of a job to the result of its episode. Throws `plugin_failed` for what is no result of a job. */
export function episodeResult(job: JobResult, { measure }: Pick<Episode, 'measure'>, method = 'runJob'): EpisodeResult {
  const status = typeof job === 'object' && job !== null ? STATUSES[job.status] : undefined;
  if (status === undefined) {
    const known = Object.keys(STATUSES).join(', ');
    const shown = JSON.stringify(job)?.slice(0, 200) ?? String(job);
    throw new FloeError('plugin_failed', `${method} returned ${shown}; its status must be one of ${known}`);
  }
  const { score = null, seatScores, stepScores = [], replyRewards, agentExitReason, answer, metrics = {} } = job;
  for (const [name, value] of Object.entries(metrics)) if (typeof value === 'number') measure(name, value);
  return {
    status,
    score: status === 'finished' || status === 'truncated' ? score : null,
    reason: agentExitReason ?? `the job ended as ${job.status}`,
    ...(seatScores === undefined ? {} : { seatScores }),
    ...(stepScores.length === 0 ? {} : { stepScores }),
    ...(replyRewards === undefined ? {} : { replyRewards }),
    ...(answer === undefined ? {} : { answer }),
  };
}
