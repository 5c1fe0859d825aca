import { z } from 'zod';
import { idSchema } from './identifiers.ts';

/** `openai`: any OpenAI-compatible API, for evaluation and data generation; it tells no token ids. */
export const engineKindSchema = z.enum(['vllm', 'sglang', 'llama_cpp', 'openai']);
export type EngineKind = z.infer<typeof engineKindSchema>;

/** What a log-probability means: of the model's own distribution, or of the one that was sampled from (temperature, top_p, …). */
export const logprobsModeSchema = z.enum(['raw', 'processed']);
export type LogprobsMode = z.infer<typeof logprobsModeSchema>;

/** What a task asks for. `auto`: `tokens` where every engine of the pool can, else `chat`. */
export const engineModeSchema = z.enum(['auto', 'tokens', 'chat']);
export type EngineMode = z.infer<typeof engineModeSchema>;

/**
 * How a completion was captured. `tokens`: the engine was given token ids; `chat`: it rendered messages and told the ids;
 * `text`: it told no ids, so that there is nothing to train on.
 */
export const captureModeSchema = z.enum(['tokens', 'chat', 'text']);
export type CaptureMode = z.infer<typeof captureModeSchema>;

/**
 * Thinking of earlier turns in a spliced prompt. `template`: as the model's own template has it: where that drops thinking, the
 * prompt is rendered anew. `tool_cycle`: kept until the next user message, then as the template. `all`: always kept.
 */
export const thinkingRetentionSchema = z.enum(['template', 'tool_cycle', 'all']);
export type ThinkingRetention = z.infer<typeof thinkingRetentionSchema>;

/** What a provider allows. `max_concurrency` of the engine limits calls at a time. */
export const engineLimitsSchema = z.strictObject({
  requests_per_minute: z.int().min(1).nullable().default(null),
  tokens_per_minute: z.int().min(1).nullable().default(null).describe('of prompts and replies together'),
});
export type EngineLimits = z.infer<typeof engineLimitsSchema>;

/** An inference server that sessions may use. */
export const engineSpecSchema = z.strictObject({
  engine_id: idSchema.optional().describe('default: derived from the URL'),
  kind: engineKindSchema.default('vllm'),
  base_url: z
    .url({ protocol: /^https?$/ })
    .refine((url) => !/^https?:\/\/[^/?#]*@/i.test(url), 'must not hold a user name or password: give an api_key')
    .describe('without /v1'),
  pool: idSchema
    .default('default')
    .describe('engines of one pool serve one policy; a task names the pool that it uses'),
  model: z.string().nullable().default(null).describe("null: the server's first model"),
  api_key: z.string().min(1).nullable().default(null).describe('sent as a bearer token; shown nowhere'),
  logprobs_mode: logprobsModeSchema
    .default('processed')
    .describe('what its logprobs mean; an engine that can be asked overrides it, vLLM cannot'),
  stream: z
    .enum(['auto', 'off'])
    .default('auto')
    .describe('auto: replies that a harness wants streamed are relayed as they come; off: they arrive whole'),
  max_concurrency: z.int().min(1).nullable().default(null).describe('calls at a time; more wait. null: any number'),
  limits: engineLimitsSchema
    .nullable()
    .default(null)
    .describe(
      'what a provider allows per minute; calls wait for it, and a Retry-After of a 429 holds all of them back',
    ),
  tool_parser: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe('name of the tool-call parser where calls are parsed apart from sampling; null: as the server says'),
  reasoning_parser: z.string().min(1).nullable().default(null).describe('the same for thinking'),
});
export type EngineSpec = z.infer<typeof engineSpecSchema>;
export type EngineSpecInput = z.input<typeof engineSpecSchema>;

const boundarySchema = z.enum(['kept', 'dropped', 'unknown']);

/** What the chat template of an engine does, learned by rendering a few messages when it was registered. */
export const templateFactsSchema = z.object({
  close_ids: z
    .array(z.int())
    .describe('ids that close an assistant turn; empty: unknown, so that no turn can be spliced'),
  tail_render: z
    .boolean()
    .describe('new messages come out the same behind the last turn alone as behind the whole conversation'),
  thinking: z
    .object({ tool_results: boundarySchema, user_message: boundarySchema })
    .describe("what becomes of the last turn's thinking when tool results or a user message follow"),
  fingerprint: z.string().nullable().describe('of tokenizer and template; engines of one pool have the same'),
});
export type TemplateFacts = z.infer<typeof templateFactsSchema>;

/** What a server can do, found out by asking it when it was registered. */
export const engineCapabilitiesSchema = z.object({
  token_ids: z.boolean().describe('replies carry token ids and log-probabilities'),
  token_input: z
    .enum(['none', 'generate', 'input_ids', 'completion'])
    .describe(
      'how a prompt can be given as ids: an own endpoint, a field of chat completions, text completions; none: not at all',
    ),
  version_spans: z.boolean().describe('replies tell which weights sampled which tokens'),
  pause: z.boolean(),
  abort: z.boolean(),
  cache_salt: z.boolean(),
  notes: z.array(z.string()).describe('what was found, in words'),
  template: templateFactsSchema,
});
export type EngineCapabilities = z.infer<typeof engineCapabilitiesSchema>;

export const engineInfoSchema = z.object({
  engine_id: idSchema,
  kind: engineKindSchema,
  base_url: z.string(),
  pool: idSchema,
  model: z.string(),
  server_version: z.string().nullable(),
  max_model_len: z.int().nullable(),
  logprobs_mode: logprobsModeSchema.nullable().describe('null: it gives no logprobs'),
  policy_version: z.string().nullable(),
  healthy: z.boolean(),
  streaming: z.boolean().describe('whether replies are relayed as they come; ends when a stream has lost token ids'),
  inflight: z.int(),
  max_concurrency: z.int().nullable(),
  held_back_ms: z.number().optional().describe('until its limits let a call begin; absent: it has none'),
  capabilities: engineCapabilitiesSchema,
});
export type EngineInfo = z.infer<typeof engineInfoSchema>;

/** How a pool picks the engine of a session's next call. */
export const enginePolicySchema = z.enum(['least_in_flight', 'assignment_count', 'consistent_hash']);
export type EnginePolicy = z.infer<typeof enginePolicySchema>;

/** `prefer_local`: a session goes to an engine of the node's own host while one has capacity. `none`: nearness only decides between equals. */
export const engineLocalitySchema = z.enum(['prefer_local', 'none']);
export type EngineLocality = z.infer<typeof engineLocalitySchema>;

/** `keep`: replies under way are frozen and go on after the resume; `abort`: they end, and are continued after it where the engine takes ids. */
export const pauseModeSchema = z.enum(['keep', 'abort']);
export type PauseMode = z.infer<typeof pauseModeSchema>;

/** What holds for all engines of a rollout service. `revision` grows with every change. */
export const engineDirectorySchema = z.object({
  revision: z.int().min(0),
  engines: z.array(engineSpecSchema),
  removed: z.array(idSchema).describe('engines that no node may use, one of its own configuration included'),
  paused: pauseModeSchema.nullable(),
  while_paused: z.enum(['hold', 'reject']).describe('what a call meets meanwhile: it waits, or 429 with Retry-After'),
  policy_version: z.string().nullable(),
});
export type EngineDirectory = z.infer<typeof engineDirectorySchema>;

/** `task.engine` */
export const taskEngineSchema = z.strictObject({
  pool: idSchema.default('default'),
  mode: engineModeSchema.default('auto'),
  thinking_retention: thinkingRetentionSchema.default('template'),
});
export type TaskEngine = z.infer<typeof taskEngineSchema>;

/** An engine on one node. `pending`: the node has yet to carry out the latest change. */
export const engineOnNodeSchema = z.object({
  node_id: idSchema,
  state: z.enum(['ready', 'pending', 'failed']),
  problem: z.string().nullable().describe('why the node cannot use it; it is tried again'),
  info: engineInfoSchema.nullable(),
});

/** A row of `GET /engines`. */
export const engineViewSchema = z.object({
  engine_id: idSchema,
  source: z.enum(['registered', 'node']).describe("node: from the node's own configuration"),
  kind: engineKindSchema,
  base_url: z.string(),
  pool: idSchema,
  nodes: z.array(engineOnNodeSchema),
});
export type EngineView = z.infer<typeof engineViewSchema>;

/** `GET /engines` */
export const enginesStatusSchema = engineDirectorySchema.omit({ engines: true }).extend({
  engines: z.array(engineViewSchema),
});
export type EnginesStatus = z.infer<typeof enginesStatusSchema>;

/** What became of a change: carried out by the nodes in `done`, on its way to those in `pending`. */
export const engineChangeSchema = z.object({
  revision: z.int(),
  engine_ids: z.array(idSchema).describe('engines that were added or removed; all for the other changes'),
  done: z.array(idSchema),
  pending: z.array(idSchema).describe('healthy nodes that have not carried it out within the wait'),
  problems: z.array(z.object({ node_id: idSchema, engine_id: z.string(), message: z.string() })),
});
export type EngineChange = z.infer<typeof engineChangeSchema>;

/** `POST /engines/pause` */
export const pauseRequestSchema = z.strictObject({
  mode: pauseModeSchema.default('keep'),
  while_paused: z.enum(['hold', 'reject']).default('hold'),
});

/** `POST /engines/version` */
export const versionRequestSchema = z.strictObject({ version: z.string().min(1).max(256) });

/** `POST /add_llm_server`, as ProRL Agent has it. */
export const addServerSchema = z.object({
  address: z.string().min(1).max(2048).describe('host:port or URL, with or without /v1'),
});
