import { type Clock, systemClock } from '@floe-rl/core';
import type { AssistantMessage, ChatTool } from '@floe-rl/core/schema';
import { z } from 'zod';
import { defineEnvironment, type EnvironmentServices, type Observation } from '../environment.ts';
import { blocksSchema, contentOfBlocks } from './content.ts';
import { readEvents } from './events.ts';
import { RemoteHttp } from './http.ts';
import { type Acted, RemoteEnvironment, type WorldAnswer } from './remote-environment.ts';
import { errorsSchema, remoteFields, serverFailed } from './service.ts';

const configSchema = z
  .strictObject({
    ...remoteFields,
    environment: z
      .string()
      .regex(/^[\w.-]{1,128}$/)
      .nullable()
      .default(null)
      .describe('name of the environment; null: the first of the server'),
    split: z.string().min(1).default('train'),
    index: z.int().min(0).nullable().default(null).describe('number of the task; null: by the seed'),
    task_spec: z
      .record(z.string(), z.unknown())
      .nullable()
      .default(null)
      .describe('the task itself, instead of a number'),
    errors: errorsSchema.default('end').describe('what becomes of an exception in a tool'),
  })
  .refine(({ index, task_spec: spec }) => index === null || spec === null, {
    path: ['task_spec'],
    message: 'index is set, too',
  });
type Config = z.output<typeof configSchema>;

/** Interval in milliseconds between the messages to the server that the episode continues; it forgets those without a sign for 15 minutes. */
const PING_MS = 60_000;

const anySchema = z.unknown();
const namesSchema = z.array(z.string()).min(1);
const countSchema = z.object({ num_tasks: z.int().min(0) });
const toolsSchema = z.object({
  tools: z.array(
    z.object({
      name: z.string(),
      description: z.string().default(''),
      input_schema: z.record(z.string(), z.unknown()).nullish(),
    }),
  ),
  terminal_tool: z.object({ name: z.string(), arg: z.string().nullish() }).nullish(),
});
const resultSchema = z.discriminatedUnion('ok', [
  z.object({
    ok: z.literal(true),
    output: z.object({
      blocks: blocksSchema,
      reward: z.number().nullish(),
      finished: z.boolean().default(false),
    }),
  }),
  z.object({ ok: z.literal(false), error: z.string(), reason: z.string().nullish() }),
]);

type Session = {
  readonly http: RemoteHttp;
  readonly id: string;
  /** Path of the environment. */
  readonly path: string;
  readonly tools: readonly ChatTool[];
  /** The tool that a reply without a call stands for; `null` for none. */
  readonly terminal: { readonly name: string; readonly arg: string | null } | null;
};

/** An environment of a server of the Open Reward Standard, whose tools give rewards. */
class OpenReward extends RemoteEnvironment<Config> {
  private readonly clock: Clock = systemClock;
  private http: RemoteHttp | null = null;
  private id: string | null = null;
  private session: Session | null = null;
  private cancelPing = (): void => {};

  constructor(config: Config, services: EnvironmentServices) {
    super('ors', config, services);
  }

  protected async start(seed: number): Promise<Observation | null> {
    const http = new RemoteHttp(this.service, this.config.step_seconds * 1_000, this.signal);
    const name = this.config.environment ?? (await http.json(namesSchema, 'GET', '/list_environments'))[0];
    const path = `/${encodeURIComponent(name ?? '')}`;
    const task = await this.taskOf(http, path, seed);
    if (task === null) return null;
    const id = await this.sessionId(http);
    this.http = http;
    this.id = id;
    const headers = { 'x-session-id': id };
    await http.json(anySchema, 'POST', '/create', { body: { env_name: name, ...task }, headers });
    this.ping();
    const blocks = await http.json(blocksSchema, 'GET', `${path}/prompt`, { headers });
    const { tools, terminal_tool: terminal } = await http.json(toolsSchema, 'GET', `${path}/task_tools`, { headers });
    this.session = {
      ...{ http, id, path },
      tools: tools.map(toolOf),
      terminal: terminal ? { name: terminal.name, arg: terminal.arg ?? null } : null,
    };
    const content = contentOfBlocks(blocks, this.config.max_chars);
    return { messages: [{ role: 'user', content }], tools: this.session.tools };
  }

  protected async act(reply: AssistantMessage): Promise<Acted> {
    const { session } = this;
    if (session === null) throw new Error('step was called before reset');
    const { tools, terminal } = session;
    const calls = reply.tool_calls ?? [];
    if (calls.length > 0) return this.calls(calls, tools, (name, args) => this.call(session, name, args));
    if (terminal === null) return this.reminder(tools);
    const args = terminal.arg === null ? {} : { [terminal.arg]: reply.content ?? '' };
    const { content, ...answer } = await this.call(session, terminal.name, args);
    return { ...answer, end: answer.end ?? 'terminated', messages: [{ role: 'user', content }] };
  }

  protected async leave(): Promise<void> {
    this.cancelPing();
    const { http, id } = this;
    this.http = null;
    this.id = null;
    this.session = null;
    if (http === null || id === null || this.signal.aborted) return;
    const headers = { 'x-session-id': id };
    await http.send('POST', '/delete', { headers }).catch(() => undefined);
    await http.send('POST', '/delete_session', { headers }).catch(() => undefined);
  }

  /** Returns the fields that name the task; `null` when the split has none. */
  private async taskOf(http: RemoteHttp, path: string, seed: number): Promise<object | null> {
    const { split, index, task_spec: spec } = this.config;
    if (spec !== null) return { task_spec: spec };
    if (index !== null) return { split, index };
    const { num_tasks: count } = await http.json(countSchema, 'POST', `${path}/num_tasks`, { body: { split } });
    return count === 0 ? null : { split, index: seed % count };
  }

  private async sessionId(http: RemoteHttp): Promise<string> {
    const { status, text } = await http.send('POST', '/create_session');
    const id = readEvents(text).find(({ event }) => event === 'task_id')?.data;
    if (status < 300 && id !== undefined && id !== '') return id;
    throw serverFailed(this.service, `made no session: status ${status}`);
  }

  private async call(session: Session, name: string, args: Record<string, unknown>): Promise<WorldAnswer> {
    const { http, id, path } = session;
    const body = { name, input: args };
    const { status, text } = await http.send('POST', `${path}/call`, { body, headers: { 'x-session-id': id } });
    if (status >= 300) throw serverFailed(this.service, `refused the call of ${name}: status ${status}`);
    const events = readEvents(text);
    const failure = events.find(({ event }) => event === 'error');
    if (failure !== undefined) return this.worldError(this.config.errors, `${name} failed: ${failure.data}`);
    if (events.at(-1)?.event !== 'end') throw serverFailed(this.service, `ended its answer to ${name} early`);
    const json = events.flatMap(({ event, data }) => (event === 'chunk' || event === 'end' ? [data] : [])).join('');
    return this.answerOf(http.parsed(resultSchema, json, name));
  }

  private answerOf(result: z.output<typeof resultSchema>): WorldAnswer {
    if (!result.ok) {
      const end = result.reason === 'episode_finished' ? 'terminated' : null;
      return { content: result.error.slice(0, this.config.max_chars), reward: 0, end, isError: true };
    }
    const { blocks, reward, finished } = result.output;
    const content = contentOfBlocks(blocks, this.config.max_chars);
    return { content, reward: reward ?? 0, end: finished ? 'terminated' : null };
  }

  private ping(): void {
    this.cancelPing = this.clock.schedule(PING_MS, () => {
      const { http, id } = this;
      if (http === null || id === null) return;
      // A call notices a server that is gone.
      http.send('POST', '/ping', { headers: { 'x-session-id': id } }).catch(() => undefined);
      this.ping();
    });
  }
}

function toolOf({ name, description, input_schema: schema }: z.output<typeof toolsSchema>['tools'][number]): ChatTool {
  const parameters = schema ?? { type: 'object', properties: {} };
  return { type: 'function', function: { name, description, parameters } };
}

export const openReward = defineEnvironment({
  name: 'ors',
  description: 'a world of a server of the Open Reward Standard',
  config: configSchema,
  create: (config, services) => new OpenReward(config, services),
});
