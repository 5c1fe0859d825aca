import { systemClock } from '@floe-rl/core';
import type { AssistantMessage, ChatMessage, ChatTool } from '@floe-rl/core/schema';
import { z } from 'zod';
import { cutContent } from '../../cut-content.ts';
import { defineEnvironment, type EnvironmentServices, type Observation } from '../environment.ts';
import { RemoteHttp } from './http.ts';
import { itemsOf, outputItemsOf, requestOf, responseOf, rowSchema } from './nemo-gym-response.ts';
import { type Acted, allAnswered, RemoteEnvironment, type WorldAnswer } from './remote-environment.ts';
import { errorsSchema, remoteFields } from './service.ts';

const configSchema = z.strictObject({
  ...remoteFields,
  row: rowSchema.describe('a row of a dataset of NeMo Gym'),
  flavour: z
    .enum(['tools', 'gymnasium'])
    .default('tools')
    .describe('tools: a route for each tool, and /verify at the end; gymnasium: /reset and /step'),
  errors: errorsSchema.default('observe').describe('what becomes of a call of a tool that fails with status 500'),
});
type Config = z.output<typeof configSchema>;

const anySchema = z.unknown();
const verdictSchema = z.looseObject({ reward: z.number() });
const resetSchema = z.object({ observation: z.string().nullish() });
const stepSchema = z.object({
  observation: z.string().nullish(),
  reward: z.number().default(0),
  terminated: z.boolean().default(false),
  truncated: z.boolean().default(false),
  info: z
    .looseObject({ tool_outputs: z.array(z.object({ call_id: z.string(), output: z.string() })).default([]) })
    .nullish(),
});

/** An environment of a resources server of NeMo Gym. A session is known to the server by its cookie. */
abstract class NemoGym extends RemoteEnvironment<Config> {
  protected tools: readonly ChatTool[] = [];
  protected replies = 0;

  constructor(config: Config, services: EnvironmentServices) {
    super('nemo_gym', config, services);
  }

  protected open(): RemoteHttp {
    this.replies = 0;
    return new RemoteHttp(this.service, this.config.step_seconds * 1_000, this.signal);
  }

  protected bodyWith(output: readonly object[]): object {
    const { row } = this.config;
    return { ...row, response: responseOf(row, output, Math.floor(systemClock.nowMs() / 1_000)) };
  }

  protected requireOpen(http: RemoteHttp | null): RemoteHttp {
    if (http === null) throw new Error('step was called before reset');
    return http;
  }
}

/** A server that has a route for each tool, and grades the whole conversation with `/verify`. */
class ToolsServer extends NemoGym {
  private http: RemoteHttp | null = null;
  private output: object[] = [];

  protected async start(): Promise<Observation> {
    const http = this.open();
    this.output = [];
    await http.json(anySchema, 'POST', '/seed_session', { body: this.config.row });
    this.http = http;
    const { messages, tools } = requestOf(this.config.row);
    this.tools = tools;
    return { messages, tools };
  }

  protected async act(reply: AssistantMessage): Promise<Acted> {
    this.output.push(...itemsOf(reply, this.replies++));
    const calls = reply.tool_calls ?? [];
    if (calls.length === 0) return { messages: [], end: 'terminated', ...(await this.judge()) };
    const acted = await this.calls(calls, this.tools, (name, args) => this.call(name, args));
    this.output.push(...outputItemsOf(acted.messages));
    return acted;
  }

  protected async leave(): Promise<void> {
    this.http = null;
  }

  protected override async judge(): Promise<Pick<Acted, 'reward' | 'metrics'>> {
    const http = this.requireOpen(this.http);
    const verdict = await http.json(verdictSchema, 'POST', '/verify', { body: this.bodyWith(this.output) });
    return { reward: verdict.reward, metrics: this.metricsOf(verdict) };
  }

  private async call(name: string, args: Record<string, unknown>): Promise<WorldAnswer> {
    const { status, text } = await this.requireOpen(this.http).send('POST', `/${name}`, { body: args });
    if (status >= 500) return this.worldError(this.config.errors, `${name} failed with status ${status}: ${text}`);
    const content = cutContent(text, this.config.max_chars);
    return { content, reward: 0, end: null, isError: status >= 300 };
  }

  /** Returns the numbers of a verdict that are no fields of the row. */
  private metricsOf(verdict: z.output<typeof verdictSchema>): Record<string, number> {
    const { reward: _, response: _response, reward_components: components, ...rest } = verdict;
    const named = Object.entries(rest).filter(([name]) => !(name in this.config.row));
    const entries = [...named, ...Object.entries((components ?? {}) as object)];
    return Object.fromEntries(entries.filter((entry): entry is [string, number] => Number.isFinite(entry[1])));
  }
}

/** A server in the form of Gymnasium: each reply is an action. */
class GymnasiumServer extends NemoGym {
  private http: RemoteHttp | null = null;

  protected async start(): Promise<Observation> {
    const http = this.open();
    const { observation } = await http.json(resetSchema, 'POST', '/reset', { body: this.config.row });
    this.http = http;
    const { messages, tools } = requestOf(this.config.row);
    this.tools = tools;
    return { messages: [...messages, ...this.shown(observation ?? '')], tools };
  }

  protected async act(reply: AssistantMessage): Promise<Acted> {
    const body = this.bodyWith(itemsOf(reply, this.replies++));
    const step = await this.requireOpen(this.http).json(stepSchema, 'POST', '/step', { body });
    const { observation, reward, terminated, truncated, info } = step;
    const outputs = new Map(info?.tool_outputs.map(({ call_id: id, output }) => [id, output]));
    const calls = reply.tool_calls ?? [];
    const end = terminated ? 'terminated' : truncated ? 'truncated' : null;
    const answers = calls.map(({ id }): ChatMessage => {
      return { role: 'tool', tool_call_id: id, content: this.cut(outputs.get(id) ?? 'Done.') };
    });
    const seen = this.shown(observation ?? '');
    const messages = answers.length + seen.length > 0 || end !== null ? [...answers, ...seen] : NOTHING;
    return { messages, reward, end };
  }

  protected async leave(): Promise<void> {
    this.http = null;
  }

  private shown(observation: string): ChatMessage[] {
    return observation === '' ? [] : [{ role: 'user', content: this.cut(observation) }];
  }

  private cut(text: string): string {
    return cutContent(text, this.config.max_chars) as string;
  }
}

/** What a reply without calls gets when the server observes nothing: a conversation needs something to answer. */
const NOTHING = allAnswered({ role: 'assistant', content: '' }, '(no observation)');

export const nemoGym = defineEnvironment({
  name: 'nemo_gym',
  description: 'a world of a resources server of NeMo Gym',
  config: configSchema,
  create: (config, services) =>
    config.flavour === 'tools' ? new ToolsServer(config, services) : new GymnasiumServer(config, services),
});
