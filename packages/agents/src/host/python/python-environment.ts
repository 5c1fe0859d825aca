import { FloeError, fieldError, parseAs } from '@floe-rl/core';
import {
  type AssistantMessage,
  type ChatMessage,
  chatMessageSchema,
  chatToolSchema,
  contentSchema,
} from '@floe-rl/core/schema';
import { z } from 'zod';
import { cutContent } from '../../cut-content.ts';
import {
  defineEnvironment,
  type Environment,
  type EnvironmentDefinition,
  type Observation,
  type StepResult,
} from '../../environments/environment.ts';
import { MAX_STEPS } from '../../environments/game.ts';
import { allAnswered, answeredInText } from '../../environments/remote/remote-environment.ts';
import type { PythonHost } from './python-host.ts';
import type { PythonEpisode } from './python-process.ts';

const configSchema = z.strictObject({
  options: z
    .record(z.string(), z.unknown())
    .default({})
    .describe('keyword arguments of the environment, beside those of the operator'),
  max_steps: z.int().min(1).max(MAX_STEPS).default(100),
  max_chars: z.int().min(100).max(1_000_000).default(32_768).describe('maximum length of a text of an observation'),
});
type Config = z.output<typeof configSchema>;

const observationSchema = z.object({
  /** What the agent sees, where the environment gives no messages. */
  content: contentSchema.optional(),
  messages: z.array(chatMessageSchema).optional(),
  introduction: z.string().optional(),
  tools: z.array(chatToolSchema).optional(),
  state_hash: z.string().optional(),
  metrics: z.record(z.string(), z.number()).default({}),
});
const resetSchema = observationSchema.nullable();
const stepSchema = observationSchema.extend({
  reward: z.number(),
  terminated: z.boolean(),
  truncated: z.boolean(),
});
type PythonObservation = z.output<typeof observationSchema>;

/** Returns the environment of a Python plug-in. */
export function pythonEnvironment(host: PythonHost): EnvironmentDefinition<Config> {
  return defineEnvironment({
    name: host.name,
    description: `the Python environment ${host.plugin.target}`,
    config: configSchema,
    create(config, { signal }) {
      const fixed = Object.keys(config.options).find((option) => option in host.plugin.options);
      if (fixed !== undefined) {
        const path = `environment.config.options.${fixed}`;
        const message = 'is set by the operator of the node';
        throw fieldError(path, message);
      }
      return new PythonEnvironment(host, config, signal);
    },
  });
}

/**
 * Content of the message after a reply when the environment returns an empty observation. The model's next reply needs a message that it can
 * answer.
 */
const NOTHING = '(no observation)';

class PythonEnvironment implements Environment {
  private readonly host: PythonHost;
  private readonly config: Config;
  private readonly signal: AbortSignal;
  private episode: PythonEpisode | null = null;
  private hasTools = false;
  private steps = 0;

  constructor(host: PythonHost, config: Config, signal: AbortSignal) {
    this.host = host;
    this.config = config;
    this.signal = signal;
  }

  async reset(seed: number): Promise<Observation | null> {
    await this.close();
    this.steps = 0;
    this.hasTools = false;
    const process = await this.host.process();
    const refuse = (): Promise<never> => Promise.reject(new Error('an environment asks nothing of its node'));
    this.episode = process.begin(refuse, this.signal);
    const { options } = this.config;
    const observed = await this.call(this.episode, resetSchema, 'reset', { seed, options });
    if (observed === null) return null;
    const messages = observed.messages ?? textMessages(observed.content ?? '');
    return this.observation(observed, messages);
  }

  async step(reply: AssistantMessage): Promise<StepResult> {
    if (this.episode === null) throw new Error('step was called before reset');
    this.steps++;
    const hadTools = this.hasTools;
    const step = await this.call(this.episode, stepSchema, 'step', { message: reply });
    const { reward, terminated, truncated, metrics } = step;
    const isLast = !terminated && this.steps >= this.config.max_steps;
    const messages = step.messages ?? answers(reply, step.content ?? '', hadTools);
    return {
      ...this.observation(step, messages),
      reward,
      terminated,
      truncated: truncated || isLast,
      metrics,
    };
  }

  async close(): Promise<void> {
    this.episode?.end();
    this.episode = null;
  }

  private async call<Schema extends z.ZodType>(
    episode: PythonEpisode,
    schema: Schema,
    method: string,
    params: object,
  ): Promise<z.output<Schema>> {
    let returned: unknown;
    try {
      returned = await episode.call(method, params, this.host.plugin.call_seconds * 1_000);
    } catch (error) {
      if (FloeError.is(error) || this.signal.aborted) throw error;
      throw new Error(`${method}: ${(error as Error).message}`, { cause: error });
    }
    try {
      return parseAs(schema, returned, `what ${method} returned`);
    } catch (error) {
      // What the environment returned is its defect, and not one of the task.
      throw new Error((error as Error).message, { cause: error });
    }
  }

  private observation(observed: PythonObservation, messages: readonly ChatMessage[]): Observation {
    const { introduction, tools, state_hash: stateHash } = observed;
    if (tools !== undefined) this.hasTools = tools.length > 0;
    const cut = messages.map((message) => {
      return message.role === 'assistant'
        ? message
        : ({ ...message, content: cutContent(message.content, this.config.max_chars) } as ChatMessage);
    });
    return {
      messages: cut,
      ...(introduction === undefined ? {} : { introduction }),
      ...(tools === undefined ? {} : { tools }),
      ...(stateHash === undefined ? {} : { stateHash }),
    };
  }
}

type Content = NonNullable<PythonObservation['content']>;

function textMessages(content: Content): ChatMessage[] {
  return content === '' ? [] : [{ role: 'user', content }];
}

function answers(reply: AssistantMessage, content: Content, hasTools: boolean): ChatMessage[] {
  const shown = content === '' ? NOTHING : content;
  return hasTools ? allAnswered(reply, shown) : answeredInText(reply, shown);
}
