import { FloeError, parseAs } from '@floe-rl/core';
import { z } from 'zod';
import type { SimConfig } from '../config.ts';
import type { SimContext } from '../context.ts';
import { anyRoleMessageSchema } from '../messages.ts';
import type { Constraint } from '../policy/constraint.ts';
import { responseFormatSchema, structuredOutputsSchema, toolChoiceSchema } from '../requested-constraint.ts';
import type { SamplingParams } from '../sampler.ts';

/** Fields that the simulator refuses instead of ignoring, because a scripted policy cannot honour them. */
const UNSUPPORTED_FIELDS = [
  'logit_bias',
  'allowed_token_ids',
  'bad_words',
  'guided_json',
  'guided_regex',
  'guided_choice',
  'guided_grammar',
  'prompt_logprobs',
  'logprob_token_ids',
  'use_beam_search',
] as const;

/** Fields that vLLM knows and that have no effect in the simulator. A strict server refuses fields that vLLM does not know. */
const PASSIVE_FIELDS: ReadonlySet<string> = new Set([
  ...UNSUPPORTED_FIELDS,
  'add_special_tokens',
  'assistant_tokens_mask',
  'chat_template',
  'content_parts',
  'chat_template_kwargs',
  'documents',
  'ec_transfer_params',
  'features',
  'kv_transfer_params',
  'length_penalty',
  'metadata',
  'output_kind',
  'skip_clone',
  'skip_reading_prefix_cache',
  'min_tokens',
  'mm_processor_kwargs',
  'reasoning_effort',
  'reasoning_ended',
  'reasoning_parser_kwargs',
  'response_format',
  'return_prompt_text',
  'return_token_offsets',
  'service_tier',
  'spaces_between_special_tokens',
  'store',
  'structured_outputs',
  'suffix',
  'thinking_token_budget',
  'token_offsets',
  'tool_choice',
  'truncate_prompt_tokens',
  'user',
  'vllm_xargs',
]);

/** Fields that are supported on the chat route only. */
const CHAT_ONLY_FIELDS = ['response_format', 'structured_outputs'] as const;

const samplingFields = {
  temperature: z.number().min(0).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  top_k: z.int().min(-1).nullish(),
  min_p: z.number().min(0).max(1).nullish(),
  repetition_penalty: z.number().gt(0).nullish(),
  presence_penalty: z.number().min(-2).max(2).nullish(),
  frequency_penalty: z.number().min(-2).max(2).nullish(),
  max_tokens: z.int().min(1).nullish(),
  seed: z.int().nullish(),
  stop: z.union([z.string(), z.array(z.string())]).nullish(),
  stop_token_ids: z.array(z.int()).nullish(),
  ignore_eos: z.boolean().nullish(),
  include_stop_str_in_output: z.boolean().nullish(),
  skip_special_tokens: z.boolean().nullish(),
};

const callFields = {
  model: z.string().nullish(),
  n: z.int().min(1).max(128).nullish(),
  stream: z.boolean().nullish(),
  stream_options: z.object({ include_usage: z.boolean().nullish() }).nullish(),
  stream_interval: z.int().min(1).nullish(),
  return_token_ids: z.boolean().nullish(),
  return_tokens_as_token_ids: z.boolean().nullish(),
  request_id: z.string().nullish(),
  session_id: z.string().nullish(),
  cache_salt: z.string().min(1).max(1024).nullish(),
  routed_experts_prompt_start: z.int().min(0).nullish(),
  priority: z.int().nullish(),
};

export const tokenizeChatSchema = z.looseObject({
  model: z.string().nullish(),
  messages: z.array(anyRoleMessageSchema),
  tools: z.array(z.unknown()).nullish(),
  add_generation_prompt: z.boolean().nullish(),
  continue_final_message: z.boolean().nullish(),
  return_token_strs: z.boolean().nullish(),
});
export type TokenizeChatRequest = z.infer<typeof tokenizeChatSchema>;

export const chatRequestSchema = z.looseObject({
  ...tokenizeChatSchema.shape,
  ...samplingFields,
  ...callFields,
  max_completion_tokens: z.int().min(1).nullish(),
  logprobs: z.boolean().nullish(),
  top_logprobs: z.int().min(0).max(20).nullish(),
  include_reasoning: z.boolean().nullish(),
  tool_choice: toolChoiceSchema.nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  response_format: responseFormatSchema.nullish(),
  structured_outputs: structuredOutputsSchema.nullish(),
});
export type ChatRequest = z.infer<typeof chatRequestSchema>;

/** Body of `POST /inference/v1/generate`. The fields in `sampling_params` have the names of vLLM's engine parameters. */
export const generateRequestSchema = z.looseObject({
  request_id: z.string().min(1).nullish(),
  session_id: z.string().nullish(),
  token_ids: z.array(z.int().min(0)).min(1),
  sampling_params: z.looseObject({
    ...samplingFields,
    n: z.int().min(1).max(128).nullish(),
    logprobs: z.int().min(0).max(20).nullish(),
    detokenize: z.boolean().nullish(),
    structured_outputs: structuredOutputsSchema.nullish(),
    routed_experts_prompt_start: z.int().min(0).nullish(),
    stream_interval: callFields.stream_interval,
  }),
  model: callFields.model,
  return_token_ids: callFields.return_token_ids,
  output_mode: z.enum(['tokens', 'text']).default('tokens'),
  stream: callFields.stream,
  stream_options: callFields.stream_options,
  cache_salt: callFields.cache_salt,
  priority: callFields.priority,
});
export type GenerateRequest = z.infer<typeof generateRequestSchema>;

const idsSchema = z.array(z.int().min(0)).min(1);

export const completionRequestSchema = z.looseObject({
  ...samplingFields,
  ...callFields,
  prompt: z.union([z.string(), idsSchema, z.array(z.string()).min(1), z.array(idsSchema).min(1)]),
  logprobs: z.int().min(0).max(20).nullish(),
  echo: z.boolean().nullish(),
});
export type CompletionRequest = z.infer<typeof completionRequestSchema>;

/**
 * Validates a request body. Throws `schema_violation`, and on a strict server `engine_rejected` with the name of the first unknown field.
 */
export function parseRequest<Shape extends z.ZodRawShape, Config extends z.core.$ZodObjectConfig>(
  context: SimContext,
  schema: z.ZodObject<Shape, Config>,
  body: unknown,
  what: string,
): z.output<z.ZodObject<Shape, Config>> {
  const request = parseAs(schema, body, what);
  if (context.config.strict) refuseUnknown(schema.shape, body);
  return request;
}

/** Throws `engine_rejected` with the name of the first field that is neither in `shape` nor known to vLLM. */
export function refuseUnknown(shape: Readonly<Record<string, unknown>>, body: unknown): void {
  const unknown = Object.keys(body as object).find((key) => !(key in shape) && !PASSIVE_FIELDS.has(key));
  if (unknown !== undefined) {
    throw new FloeError('engine_rejected', `Unsupported parameter: ${unknown}`, { param: unknown });
  }
}

/** Throws `engine_rejected` for a field that the simulator cannot honour on this route. */
export function refuseUnsupported(request: Readonly<Record<string, unknown>>, route: 'chat' | 'completions'): void {
  refusePriority(request.priority);
  for (const field of route === 'chat' ? UNSUPPORTED_FIELDS : [...UNSUPPORTED_FIELDS, ...CHAT_ONLY_FIELDS]) {
    const value = request[field];
    const empty =
      value === undefined || value === null || value === false || (Array.isArray(value) && value.length === 0);
    if (!empty) {
      throw new FloeError('engine_rejected', `${field} is not supported by the simulated engine`);
    }
  }
}

/** Throws `engine_rejected` for a priority other than 0, as vLLM does when priority scheduling is off. */
export function refusePriority(priority: unknown): void {
  if (typeof priority === 'number' && priority !== 0) {
    throw new FloeError(
      'engine_rejected',
      `Got priority ${priority} but priority scheduling is not enabled on this server.`,
      { param: 'priority' },
    );
  }
}

type SamplingRequest = { readonly [K in keyof typeof samplingFields]?: z.infer<(typeof samplingFields)[K]> };

/**
 * Returns the sampling parameters of a request; `defaults` supplies the parameters that the request leaves out. Throws `engine_rejected`
 * for invalid values.
 */
export function samplingParams(
  request: SamplingRequest,
  defaults: SimConfig['generationConfig'],
  maxTokens: number,
  constraint: Constraint | null,
): SamplingParams {
  const stop = request.stop ?? [];
  if (Array.isArray(stop) && stop.includes('')) {
    throw new FloeError('engine_rejected', 'stop cannot contain an empty string.');
  }
  return {
    temperature: request.temperature ?? defaults.temperature ?? 1,
    topP: request.top_p ?? defaults.top_p ?? 1,
    topK: Math.max(0, request.top_k ?? defaults.top_k ?? 0),
    minP: request.min_p ?? defaults.min_p ?? 0,
    repetitionPenalty: request.repetition_penalty ?? defaults.repetition_penalty ?? 1,
    presencePenalty: request.presence_penalty ?? 0,
    frequencyPenalty: request.frequency_penalty ?? 0,
    maxTokens,
    stop: typeof stop === 'string' ? (stop === '' ? [] : [stop]) : stop,
    stopTokenIds: request.stop_token_ids ?? [],
    ignoreEos: request.ignore_eos ?? false,
    includeStop: request.include_stop_str_in_output ?? false,
    skipSpecial: request.skip_special_tokens ?? true,
    seed: request.seed ?? null,
    constraint,
  };
}
