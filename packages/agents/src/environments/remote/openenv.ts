import { type FloeError, fieldError, parseAs } from '@floe-rl/core';
import type { AssistantMessage, ChatTool, Content, ContentPart } from '@floe-rl/core/schema';
import { z } from 'zod';
import { defineEnvironment, type EnvironmentServices, type Observation } from '../environment.ts';
import { blocksSchema, contentOf, contentOfBlocks, imagePart } from './content.ts';
import { RemoteHttp } from './http.ts';
import { type Acted, answeredInText, RemoteEnvironment, type WorldAnswer } from './remote-environment.ts';
import { errorsSchema, remoteFields, serverFailed, worldFailed } from './service.ts';
import { RemoteSocket } from './socket.ts';

const configSchema = z.strictObject({
  ...remoteFields,
  actions: z
    .enum(['auto', 'tool', 'mcp', 'text'])
    .default('auto')
    .describe(
      'tool: one tool with the fields of an action; mcp: the tools that the world lists; text: the text of the reply; auto: mcp where actions are calls of tools, else tool',
    ),
  text_field: z.string().min(1).nullable().default(null).describe('field of an action that is the text of the reply'),
  reset: z.record(z.string(), z.unknown()).default({}).describe('further parameters of the reset, beside the seed'),
  observation_fields: z
    .array(z.string())
    .nullable()
    .default(null)
    .describe('fields of observations that the agent sees; null: all but metadata'),
  image_fields: z.array(z.string()).default([]).describe('fields that are images in base64; data URLs always are'),
  errors: errorsSchema.default('end').describe('what becomes of an exception in a step'),
});
type Config = z.output<typeof configSchema>;

const objectSchema = z.record(z.string(), z.unknown());

const answerSchema = z.discriminatedUnion('type', [
  z.object({
    type: z.literal('observation'),
    data: z.object({
      observation: objectSchema,
      reward: z.union([z.number(), z.boolean()]).nullish(),
      done: z.boolean().default(false),
    }),
  }),
  z.object({
    type: z.literal('error'),
    data: z.object({ message: z.string().default(''), code: z.string().default(''), errors: z.unknown().optional() }),
  }),
]);
type Answer = z.output<typeof answerSchema>;
type Observed = Extract<Answer, { type: 'observation' }>['data'];

const schemasSchema = z.object({ action: objectSchema });
const toolsSchema = z.object({
  tools: z.array(z.object({ name: z.string(), description: z.string().nullish(), input_schema: objectSchema })),
});
const calledSchema = z.object({
  result: z.unknown(),
  error: z.object({ error_type: z.string().default(''), message: z.string() }).nullish(),
});
const mcpResultSchema = z.object({ content: blocksSchema });

/** Errors of a server that cannot take the episode now, but perhaps later. */
const BUSY = ['CAPACITY_REACHED', 'SESSION_ERROR', 'FACTORY_ERROR'];
/** The tool whose arguments are an action. */
const ACTION_TOOL = 'act';

type Form = { readonly kind: 'tool' | 'mcp' | 'text'; readonly tools: readonly ChatTool[]; readonly field: string };

/** An environment of an OpenEnv server: one WebSocket for each episode. */
class OpenEnv extends RemoteEnvironment<Config> {
  private socket: RemoteSocket | null = null;
  private form: Form = { kind: 'text', tools: [], field: '' };

  constructor(config: Config, services: EnvironmentServices) {
    super('openenv', config, services);
  }

  protected async start(seed: number): Promise<Observation> {
    const timeoutMs = this.config.step_seconds * 1_000;
    const http = new RemoteHttp(this.service, timeoutMs, this.signal);
    const { action } = await http.json(schemasSchema, 'GET', '/schema');
    this.socket = await RemoteSocket.connect(this.service, '/ws', { signal: this.signal, timeoutMs });
    const answer = await this.ask({ type: 'reset', data: { ...this.config.reset, seed } });
    if (answer.type === 'error') throw this.startError(answer.data);
    if (answer.data.done) throw worldFailed(this.service, 'the episode was over after its reset');
    this.form = await this.formOf(action);
    const content = this.contentOf(answer.data.observation);
    const messages = content === '' ? [] : [{ role: 'user' as const, content }];
    return { messages, tools: this.form.tools };
  }

  protected async act(reply: AssistantMessage): Promise<Acted> {
    const { kind, tools, field } = this.form;
    if (kind === 'text') {
      const { content, ...answer } = await this.play({ [field]: reply.content ?? '' });
      return { ...answer, messages: answeredInText(reply, shown(content)) };
    }
    const calls = reply.tool_calls ?? [];
    if (calls.length === 0) return this.reminder(tools);
    return this.calls(calls, tools, (name, args) =>
      kind === 'tool' ? this.play(args) : this.play({ type: 'call_tool', tool_name: name, arguments: args }),
    );
  }

  protected async leave(): Promise<void> {
    const { socket } = this;
    this.socket = null;
    await socket?.close({ type: 'close' });
  }

  private async play(action: object): Promise<WorldAnswer> {
    const answer = await this.ask({ type: 'step', data: action });
    if (answer.type === 'observation') return this.observed(answer.data);
    const { code, message, errors } = answer.data;
    if (code !== 'VALIDATION_ERROR') return this.worldError(this.config.errors, `${message} (${code})`);
    const details = JSON.stringify(errors ?? message).slice(0, this.config.max_chars);
    return { content: `The action is not valid: ${details}`, reward: 0, end: null, isError: true };
  }

  private observed({ observation, reward, done }: Observed): WorldAnswer {
    const isCall = this.form.kind === 'mcp';
    const called = isCall ? calledSchema.safeParse(observation).data : undefined;
    return {
      content: called === undefined ? this.contentOf(observation) : this.contentOfCall(called),
      reward: Number(reward ?? 0),
      end: done ? 'terminated' : null,
      isError: (called?.error ?? null) !== null,
    };
  }

  private contentOf(observation: Record<string, unknown>): Content {
    const { observation_fields: fields, image_fields: imageFields, max_chars: maxChars } = this.config;
    const entries = Object.entries(observation).filter(([name]) => fields?.includes(name) ?? name !== 'metadata');
    const isImage = ([name, value]: [string, unknown]): boolean =>
      typeof value === 'string' && value !== '' && (imageFields.includes(name) || value.startsWith('data:image/'));
    const images = entries.filter(isImage).map(([, value]) => imagePart(String(value)));
    const others = entries.filter((entry) => !isImage(entry));
    const [only] = others;
    const isText = others.length === 1 && typeof only?.[1] === 'string';
    const text = isText ? String(only?.[1]) : others.length === 0 ? '' : JSON.stringify(Object.fromEntries(others));
    const parts: ContentPart[] = [{ type: 'text', text }, ...images];
    return contentOf(parts, maxChars);
  }

  private contentOfCall({ result, error }: z.output<typeof calledSchema>): Content {
    const { max_chars: maxChars } = this.config;
    const blocks = mcpResultSchema.safeParse(result).data?.content;
    if (error !== undefined && error !== null) return `Error: ${error.message}`.slice(0, maxChars);
    if (blocks !== undefined) return contentOfBlocks(blocks, maxChars);
    const text = typeof result === 'string' ? result : JSON.stringify(result ?? null);
    return contentOf([{ type: 'text', text }], maxChars);
  }

  private async formOf(action: Record<string, unknown>): Promise<Form> {
    const { actions, text_field: named } = this.config;
    const properties = parseAs(objectSchema, action.properties ?? {}, 'the schema of actions');
    const isCall = 'tool_name' in properties && 'arguments' in properties;
    const kind = actions === 'auto' ? (isCall ? 'mcp' : 'tool') : actions;
    if (kind === 'mcp') return { kind, tools: await this.listedTools(), field: '' };
    if (kind === 'tool') return { kind, tools: [actionTool(action, properties)], field: '' };
    const texts = Object.entries(properties).filter(([, field]) => (field as { type?: unknown }).type === 'string');
    const field = named ?? (texts.length === 1 ? texts[0]?.[0] : undefined);
    if (field !== undefined && field in properties) return { kind, tools: [], field };
    const names = Object.keys(properties).join(', ');
    const message = `environment.config.text_field: name the field of an action that is the text; there are: ${names}`;
    throw fieldError('environment.config.text_field', message, { text: message });
  }

  private async listedTools(): Promise<ChatTool[]> {
    const answer = await this.ask({ type: 'step', data: { type: 'list_tools' } });
    if (answer.type === 'error') throw worldFailed(this.service, `it lists no tools: ${answer.data.message}`);
    const listed = toolsSchema.safeParse(answer.data.observation);
    if (!listed.success) throw worldFailed(this.service, 'it lists no tools; choose other environment.config.actions');
    return listed.data.tools.map(({ name, description, input_schema: parameters }) => ({
      type: 'function',
      function: { name, description: description ?? '', parameters },
    }));
  }

  private startError({ message, code }: { readonly message: string; readonly code: string }): FloeError {
    if (BUSY.includes(code)) return serverFailed(this.service, `cannot start an episode: ${message} (${code})`);
    return worldFailed(this.service, `the reset failed: ${message} (${code})`);
  }

  private async ask(message: object): Promise<Answer> {
    const { socket, service, config } = this;
    if (socket === null) throw new Error('step was called before reset');
    const answer = answerSchema.safeParse(await socket.request(message, config.step_seconds * 1_000));
    if (!answer.success) throw serverFailed(service, `gave an answer of another form: ${answer.error.message}`);
    return answer.data;
  }
}

/** Returns the tool whose arguments are the fields of an action. */
function actionTool(action: Record<string, unknown>, properties: Record<string, unknown>): ChatTool {
  const { metadata: _, ...fields } = properties;
  const { title: _title, description, ...rest } = action;
  const text = typeof description === 'string' ? description : 'Takes an action.';
  return {
    type: 'function',
    function: { name: ACTION_TOOL, description: text, parameters: { ...rest, properties: fields } },
  };
}

/** An observation in text that may be empty, as chat templates allow no empty user message. */
function shown(content: Content): Content {
  return content === '' ? '(no observation)' : content;
}

export const openEnv = defineEnvironment({
  name: 'openenv',
  description: 'a world of an OpenEnv server, over its WebSocket',
  config: configSchema,
  create: (config, services) => new OpenEnv(config, services),
});
