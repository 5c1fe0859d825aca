import { z } from 'zod';
import { idSchema } from './identifiers.ts';

/**
 * Kinds of inference servers that floe itself has an adapter for. `openai` is any OpenAI-compatible API, whose replies can be trained on if it returns token ids. `tinker` is
 * the API of Tinker's sampling service.
 */
export const engineKindSchema = z.enum(['vllm', 'sglang', 'llama_cpp', 'openai', 'tinker']);
export type EngineKind = z.infer<typeof engineKindSchema>;

/** Name of a kind of engine: one of {@link engineKindSchema}, or the name of an engine module of the nodes. */
export const engineKindNameSchema = z
  .string()
  .regex(/^[a-z][a-z0-9_]{0,63}$/, 'must be lower-case letters, digits and underscores, and begin with a letter')
  .describe(`${engineKindSchema.options.join(', ')}, or the name of an engine module of the nodes`);

/**
 * The distribution to which log-probabilities belong: the model's own (`raw`), or the one after temperature, top_p and so on, from which
 * tokens are sampled (`processed`).
 */
export const logprobsModeSchema = z.enum(['raw', 'processed']);
export type LogprobsMode = z.infer<typeof logprobsModeSchema>;

/**
 * How engines are prompted for a task: with token ids (`tokens`) or with messages (`chat`). `auto` is `tokens` when every engine of the
 * pool supports it, and `chat` otherwise.
 */
export const engineModeSchema = z.enum(['auto', 'tokens', 'chat']);
export type EngineMode = z.infer<typeof engineModeSchema>;

/**
 * How a completion was captured. `tokens`: the engine was prompted with token ids. `chat`: the engine rendered messages and returned the
 * ids. `text`: the engine returned no ids, so the completion cannot be trained on.
 */
export const captureModeSchema = z.enum(['tokens', 'chat', 'text']);
export type CaptureMode = z.infer<typeof captureModeSchema>;

/**
 * Whether a prompt keeps the thinking of earlier turns. `template`: as the model's own chat template does. Where the template drops
 * thinking, the prompt is rendered from messages instead of reusing the sampled token ids. `tool_cycle`: thinking is kept until the next
 * user message, then as the template does. `all`: thinking is always kept.
 */
export const thinkingRetentionSchema = z.enum(['template', 'tool_cycle', 'all']);
export type ThinkingRetention = z.infer<typeof thinkingRetentionSchema>;

/** Rate limits of an engine's provider. The number of concurrent calls is limited separately, by the engine's `max_concurrency`. */
export const engineLimitsSchema = z.strictObject({
  requests_per_minute: z.int().min(1).nullable().default(null),
  tokens_per_minute: z
    .int()
    .min(1)
    .nullable()
    .default(null)
    .describe('most tokens per minute, counting prompts and replies'),
});
export type EngineLimits = z.infer<typeof engineLimitsSchema>;

/** Where a machine is in a cluster. `null` means that it is not known. */
export const placeSchema = z.strictObject({
  rack: z.string().min(1).max(200).nullable().default(null).describe('machines of one rack share a switch'),
  zone: z.string().min(1).max(200).nullable().default(null).describe('racks of one zone have a fast network'),
});
export type Place = z.infer<typeof placeSchema>;

/** Bounds of a limit of an engine's concurrent calls that follows the engine's load. */
export const adaptiveConcurrencySchema = z
  .strictObject({
    min: z.int().min(1).max(1_000_000).default(4),
    max: z.int().min(1).max(1_000_000).default(1024),
  })
  .refine(({ min, max }) => min <= max, 'min must not be greater than max');
export type AdaptiveConcurrency = z.infer<typeof adaptiveConcurrencySchema>;

/** An inference server that samples for sessions. */
export const engineSpecSchema = z.strictObject({
  engine_id: idSchema.optional().describe('id of the engine; default: derived from host, port and path of the URL'),
  kind: engineKindNameSchema.default('vllm'),
  base_url: z
    .url({ protocol: /^https?$/ })
    .refine((url) => !/^https?:\/\/[^/?#]*@/i.test(url), 'must not hold a user name or password: give an api_key')
    .describe('address of the server without /v1'),
  pool: idSchema.default('default').describe('engines of one pool serve one policy; a task selects its pool'),
  model: z
    .string()
    .nullable()
    .default(null)
    .describe('name of the model; null selects the first model that the server lists'),
  api_key: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe('key that is sent as a bearer token; never shown or logged'),
  logprobs_mode: logprobsModeSchema
    .default('processed')
    .describe(
      'distribution of the log-probabilities of the engine, where it cannot be measured at registration; for vLLM and SGLang, the measured one overrides this',
    ),
  stream: z
    .enum(['auto', 'off'])
    .default('auto')
    .describe(
      'how streaming requests are answered; auto: replies are relayed as the engine samples them; off: harnesses receive each reply as a whole',
    ),
  max_concurrency: z
    .int()
    .min(1)
    .nullable()
    .default(null)
    .describe('most concurrent calls, further calls wait; null for no limit'),
  place: placeSchema
    .prefault({})
    .describe('rack and zone of the machine; nodes with engine_locality prefer_local use near engines first'),
  adaptive_concurrency: adaptiveConcurrencySchema
    .nullable()
    .default(null)
    .describe(
      'bounds of a further limit of concurrent calls, which each node adjusts to the load that the engine reports; for kinds vllm, sglang and llama_cpp; null for none',
    ),
  limits: engineLimitsSchema
    .nullable()
    .default(null)
    .describe(
      'rate limits of the provider; calls wait until they are within the limits, and the Retry-After of a 429 delays all calls',
    ),
  tool_parser: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe(
      'tool-call parser to use where calls are parsed separately from sampling; null for the one that the server reports',
    ),
  reasoning_parser: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe('reasoning parser to use, with the same default as tool_parser'),
  token_ids: z
    .enum(['auto', 'required', 'off'])
    .default('auto')
    .describe(
      'for kind openai, whether token ids and log-probabilities are requested; auto: if the API returns them at registration; required: registration fails when it does not; off: never',
    ),
  tokenizer: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe(
      "folder on the nodes with the model's tokenizer.json and chat template; required for kind tinker and engine modules, whose servers render no messages",
    ),
});
export type EngineSpec = z.infer<typeof engineSpecSchema>;
export type EngineSpecInput = z.input<typeof engineSpecSchema>;

const boundarySchema = z.enum(['kept', 'dropped', 'unknown']);

/** Properties of an engine's chat template. They are found by rendering a few messages when the engine is registered. */
export const templateFactsSchema = z.object({
  close_ids: z
    .array(z.int())
    .describe(
      'token ids that close an assistant turn; an empty list when they are unknown, and then no prompt is spliced',
    ),
  call_end: z
    .object({
      ids: z.array(z.int()).describe('token ids after the arguments of the last tool call of a turn, up to its close'),
      each: z.int().nullable().describe('the id among `ids` that ends every tool call; null when there is none'),
    })
    .describe('how tool calls end; an empty list when they end only with the brackets of their arguments'),
  tail_render: z
    .boolean()
    .describe('whether new messages render the same after the last turn alone as after the whole conversation'),
  thinking: z
    .object({ tool_results: boundarySchema, user_message: boundarySchema })
    .describe('whether the template keeps the thinking of the last turn when tool results or a user message follow'),
  fingerprint: z.string().nullable().describe('digest of tokenizer and template, the same for all engines of a pool'),
});
export type TemplateFacts = z.infer<typeof templateFactsSchema>;

/** The features that an inference server supports, as probed when the engine was registered. */
export const engineCapabilitiesSchema = z.object({
  token_ids: z.boolean().describe('whether replies carry token ids and log-probabilities'),
  token_input: z
    .enum(['none', 'generate', 'input_ids', 'completion'])
    .describe(
      'how the engine accepts a prompt as token ids: its own generate endpoint, a field of chat completions, text completions, or not at all',
    ),
  version_spans: z.boolean().describe('whether replies state which weights sampled which tokens'),
  pause: z.boolean(),
  abort: z.boolean(),
  cache_salt: z.boolean(),
  notes: z.array(z.string()).describe('remarks of the probe for operators, as sentences'),
  template: templateFactsSchema,
});
export type EngineCapabilities = z.infer<typeof engineCapabilitiesSchema>;

export const engineInfoSchema = z.object({
  engine_id: idSchema,
  kind: engineKindNameSchema,
  base_url: z.string(),
  pool: idSchema,
  model: z.string(),
  server_version: z.string().nullable(),
  max_model_len: z.int().nullable(),
  logprobs_mode: logprobsModeSchema
    .nullable()
    .describe(
      'distribution of the log-probabilities, for vLLM and SGLang as measured at registration; capabilities.notes states where it could not be measured or is not the configured one; null when the engine returns none',
    ),
  policy_version: z.string().nullable(),
  healthy: z.boolean(),
  streaming: z
    .boolean()
    .describe('whether replies are relayed while they are sampled; turned off once a stream has lost token ids'),
  inflight: z.int(),
  max_concurrency: z.int().nullable(),
  adaptive: z
    .object({
      limit: z.int().describe('most concurrent calls at present'),
      decreases: z.int().describe('number of times that the limit was lowered because the engine was overloaded'),
      kv_usage: z.number().nullable().describe('share of the KV cache in use'),
      waiting: z.number().nullable().describe('requests that wait in the engine, of all its clients'),
      preemptions: z.number().nullable(),
      unreadable: z.int().describe('number of readings that had no plausible value; they did not change the limit'),
    })
    .optional()
    .describe(
      'the limit that follows the load of the engine, and the last reading of that load; absent without adaptive_concurrency',
    ),
  held_back_ms: z
    .number()
    .optional()
    .describe("milliseconds until the engine's rate limits admit the next call; absent when it has no limits"),
  capabilities: engineCapabilitiesSchema,
});
export type EngineInfo = z.infer<typeof engineInfoSchema>;

/** How a pool picks the engine for the next call of a session. */
export const enginePolicySchema = z.enum(['least_in_flight', 'assignment_count', 'consistent_hash']);
export type EnginePolicy = z.infer<typeof enginePolicySchema>;

/**
 * Whether sessions prefer engines that are near. `prefer_local`: they use an engine on their node's own host while one has free capacity, then
 * one in its rack, then one in its zone. `none`: distance matters only for the choice between engines that are otherwise equally good.
 */
export const engineLocalitySchema = z.enum(['prefer_local', 'none']);
export type EngineLocality = z.infer<typeof engineLocalitySchema>;

/**
 * How a pause of the engines treats replies that are being sampled. `keep`: they are frozen and continue after the resume. `abort`: they
 * end, and after the resume they continue on engines that accept token ids.
 */
export const pauseModeSchema = z.enum(['keep', 'abort']);
export type PauseMode = z.infer<typeof pauseModeSchema>;

/** The engines of a rollout server and whether they are paused. `revision` increases with every change. */
export const engineDirectorySchema = z.object({
  revision: z.int().min(0),
  engines: z.array(engineSpecSchema),
  removed: z.array(idSchema).describe('engines that no node may use, even when its own configuration names them'),
  paused: pauseModeSchema.nullable(),
  while_paused: z
    .enum(['hold', 'reject'])
    .describe('whether calls during a pause wait or are rejected with 429 and Retry-After'),
  policy_version: z.string().nullable(),
});
export type EngineDirectory = z.infer<typeof engineDirectorySchema>;

/** The `engine` field of a task: which engines sample its replies and how. */
export const taskEngineSchema = z.strictObject({
  pool: idSchema.default('default'),
  extra_pools: z
    .array(idSchema)
    .max(16)
    .optional()
    .describe(
      'further pools, which an agent of floe may name for conversations other than its main one; default: none',
    ),
  mode: engineModeSchema.default('auto'),
  thinking_retention: thinkingRetentionSchema.default('template'),
});
export type TaskEngine = z.infer<typeof taskEngineSchema>;

/** The state of an engine on one node. `pending` means that the node has not yet applied the latest change. */
export const engineOnNodeSchema = z.object({
  node_id: idSchema,
  state: z.enum(['ready', 'pending', 'failed']),
  problem: z.string().nullable().describe('why the node cannot use the engine; the node retries'),
  info: engineInfoSchema.nullable(),
});

/** One engine in the reply of `GET /engines`. */
export const engineViewSchema = z.object({
  engine_id: idSchema,
  source: z
    .enum(['registered', 'node'])
    .describe('where the engine was added; node: in the configuration of the node; registered: through the API'),
  kind: engineKindNameSchema,
  base_url: z.string(),
  pool: idSchema,
  nodes: z.array(engineOnNodeSchema),
});
export type EngineView = z.infer<typeof engineViewSchema>;

/** The reply of `GET /engines`. */
export const enginesStatusSchema = engineDirectorySchema.omit({ engines: true }).extend({
  engines: z.array(engineViewSchema),
});
export type EnginesStatus = z.infer<typeof enginesStatusSchema>;

/** The progress of a change of engines. The nodes in `done` have applied the change, the nodes in `pending` have not yet. */
export const engineChangeSchema = z.object({
  revision: z.int(),
  engine_ids: z.array(idSchema).describe('engines that were added or removed; after any other change, all engines'),
  done: z.array(idSchema),
  pending: z.array(idSchema).describe('healthy nodes that did not apply the change within the requested wait'),
  problems: z
    .array(z.object({ node_id: idSchema, engine_id: z.string(), message: z.string() }))
    .describe(
      'engines that a node cannot use; during a pause also engines that the pause does not stop, with the number of replies that are running on them',
    ),
});
export type EngineChange = z.infer<typeof engineChangeSchema>;

/** The body of `POST /engines/pause`. */
export const pauseRequestSchema = z.strictObject({
  mode: pauseModeSchema.default('keep'),
  while_paused: z.enum(['hold', 'reject']).default('hold'),
});

/** The body of `POST /engines/version`. */
export const versionRequestSchema = z.strictObject({ version: z.string().min(1).max(256) });

/** The body of `POST /add_llm_server`, a route that NVIDIA's ProRL Agent has under the same name. */
export const addServerSchema = z.object({
  address: z.string().min(1).max(2048).describe('host:port or URL of the engine, with or without /v1'),
});
