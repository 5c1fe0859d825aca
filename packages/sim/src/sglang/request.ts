import { FloeError } from '@floe-rl/core';
import { z } from 'zod';
import type { SimConfig } from '../config.ts';
import type { Exchange } from '../http.ts';
import { messageSchema } from '../messages.ts';
import { responseFormatSchema, toolChoiceSchema } from '../requested-constraint.ts';
import { type CallHead, newCallHead } from '../sampled-call.ts';
import type { SglangState } from './state.ts';

type SglangAge = SimConfig['sglangAge'];

/** Simulated SGLang releases in order, oldest first; each is named by the feature that it introduced. */
const AGES: readonly SglangAge[] = ['meta_info', 'token_ids', 'sglext', 'stream_ids'];

/** Whether the simulated release is `age` or newer. */
export function isAtLeast(state: SglangState, age: SglangAge): boolean {
  return AGES.indexOf(state.context.config.sglangAge) >= AGES.indexOf(age);
}

const idsSchema = z.array(z.int().min(0)).min(1);
const flag = z.boolean().nullish();

const commonSampling = {
  temperature: z.number().min(0).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  top_k: z.union([z.literal(-1), z.int().min(1)]).nullish(),
  min_p: z.number().min(0).max(1).nullish(),
  repetition_penalty: z.number().gt(0).max(2).nullish(),
  presence_penalty: z.number().min(-2).max(2).nullish(),
  frequency_penalty: z.number().min(-2).max(2).nullish(),
  stop: z.union([z.string(), z.array(z.string().min(1))]).nullish(),
  stop_token_ids: z.array(z.int()).nullish(),
  ignore_eos: flag,
  skip_special_tokens: flag,
  no_stop_trim: flag,
};
export type CommonSampling = { readonly [K in keyof typeof commonSampling]?: z.infer<(typeof commonSampling)[K]> };

/** Schema of `sampling_params` in `/generate`. An unknown name is an error even when the server's setting `strict` is off. */
const nativeSamplingSchema = z.strictObject({
  ...commonSampling,
  max_new_tokens: z.int().min(1).nullish(),
  sampling_seed: z.int().nullish(),
  spaces_between_special_tokens: flag,
  n: z.literal(1, 'only one reply per call is supported by the simulated engine').nullish(),
  json_schema: z.union([z.string(), z.record(z.string(), z.unknown())]).nullish(),
});

/** Request fields that identify the call and the cache entries that it may share. */
const callFields = {
  rid: z.string().min(1).nullish(),
  session_id: z.string().nullish(),
  cache_salt: z.string().nullish(),
  extra_key: z.string().nullish(),
  priority: z.int().nullish(),
  return_routed_experts: flag,
  routed_experts_start_len: z.int().min(0).nullish(),
};

export const generateRequestSchema = z.looseObject({
  ...callFields,
  text: z.string('batches are not supported by the simulated engine').nullish(),
  input_ids: z.array(z.int('batches are not supported by the simulated engine').min(0)).min(1).nullish(),
  sampling_params: nativeSamplingSchema.nullish(),
  return_logprob: flag,
  logprob_start_len: z.int().min(-1).nullish(),
  top_logprobs_num: z.int().min(0).nullish(),
  return_text_in_logprobs: flag,
  return_prompt_token_ids: flag,
  stream: flag,
});
export type GenerateRequest = z.infer<typeof generateRequestSchema>;

const openAiFields = {
  ...callFields,
  ...commonSampling,
  model: z.string().nullish(),
  max_tokens: z.int().min(1).nullish(),
  seed: z.int().nullish(),
  n: z.literal(1, 'only one reply per call is supported by the simulated engine').nullish(),
  stream: flag,
  stream_options: z.looseObject({ include_usage: flag }).nullish(),
  user: z.string().nullish(),
};

/** Request fields from which a conversation is rendered. */
export const conversationFields = {
  messages: z.array(messageSchema).min(1),
  tools: z.array(z.unknown()).nullish(),
  tool_choice: toolChoiceSchema.nullish(),
  continue_final_message: flag,
  chat_template_kwargs: z.record(z.string(), z.unknown()).nullish(),
  reasoning_effort: z.union([z.string(), z.number()]).nullish(),
};

/** The request fields that demand token ids in the reply, each with the oldest SGLang release that accepts it. */
const ID_FIELDS: Readonly<Record<string, SglangAge>> = {
  return_meta_info: 'meta_info',
  return_prompt_token_ids: 'meta_info',
  return_token_ids: 'token_ids',
  return_input_ids_in_sglext: 'sglext',
  return_output_ids_in_sglext: 'sglext',
};

export const chatRequestSchema = z.looseObject({
  ...openAiFields,
  ...conversationFields,
  max_completion_tokens: z.int().min(1).nullish(),
  logprobs: flag,
  top_logprobs: z.int().min(0).max(20).nullish(),
  response_format: responseFormatSchema.nullish(),
  parallel_tool_calls: flag,
  input_ids: idsSchema.nullish(),
  separate_reasoning: flag,
  stream_reasoning: flag,
  return_meta_info: flag,
  return_prompt_token_ids: flag,
  return_token_ids: flag,
  return_input_ids_in_sglext: flag,
  return_output_ids_in_sglext: flag,
});
export type ChatRequest = z.infer<typeof chatRequestSchema>;

export const completionRequestSchema = z.looseObject({
  ...openAiFields,
  prompt: z.union([z.string(), idsSchema], 'batches are not supported by the simulated engine'),
  logprobs: z.int().min(0).max(20).nullish(),
  return_token_ids: flag,
});
export type CompletionRequest = z.infer<typeof completionRequestSchema>;

/** Fields that the simulator refuses instead of ignoring, because a scripted policy cannot honour them. */
const UNSUPPORTED_FIELDS = [
  'echo',
  'logit_bias',
  'regex',
  'ebnf',
  'structural_tag',
  'stop_regex',
  'input_embeds',
  'image_data',
  'lora_path',
  'session_params',
  'token_ids_logprob',
  'return_hidden_states',
  'return_sampling_mask',
  'return_entropy',
] as const;

/** Fields that SGLang knows and that have no effect in the simulator. */
const PASSIVE_FIELDS: ReadonlySet<string> = new Set([
  ...UNSUPPORTED_FIELDS,
  'add_special_tokens',
  'bootstrap_host',
  'bootstrap_port',
  'bootstrap_room',
  'conversation_id',
  'custom_labels',
  'data_parallel_rank',
  'max_thinking_tokens',
  'min_tokens',
  'return_bytes',
  'return_cached_tokens_details',
  'return_indexer_topk',
  'return_spec_tokens_details',
  'routed_dp_rank',
  'routing_key',
  'spaces_between_special_tokens',
  'suffix',
]);

/**
 * Throws `engine_rejected` for a field that the simulator cannot honour. With the server's setting `strict`, also throws for a field that
 * the simulated release does not know. `known` has the fields of the route's schema.
 */
export function checkFields(state: SglangState, request: Readonly<Record<string, unknown>>, known: object): void {
  for (const field of UNSUPPORTED_FIELDS) {
    const value = request[field];
    if (value !== undefined && value !== null && value !== false) {
      throw new FloeError('engine_rejected', `${field} is not supported by the simulated engine`);
    }
  }
  if (!state.context.config.strict) return;
  for (const field of Object.keys(request)) {
    const age = ID_FIELDS[field];
    const isKnown = field in known || PASSIVE_FIELDS.has(field);
    if (!isKnown || (age !== undefined && !isAtLeast(state, age))) {
      throw new FloeError('engine_rejected', `${field}: Extra inputs are not permitted`);
    }
  }
}

/** The parts of a chat reply in which token ids are reported. */
export type RequestedIds = {
  /** Whether the reply's `meta_info` reports ids. */
  readonly metaInfo: boolean;
  /** Whether the choice object in the reply has the ids of the prompt. */
  readonly choicePrompt: boolean;
  /** Whether the choice object in the reply has the ids of the sampled tokens. */
  readonly choiceOutput: boolean;
  /**
   * Whether the field `sglext` of the reply has the ids of the prompt. In a stream, a separate chunk after the finish reason has this
   * field.
   */
  readonly extensionInput: boolean;
  /** Whether the field `sglext` of the reply has the ids of the sampled tokens. */
  readonly extensionOutput: boolean;
  /** Whether the first chunk of a stream has the ids of the prompt. */
  readonly chunkPrompt: boolean;
  /** Whether the chunks of a stream have the ids of the sampled tokens. */
  readonly chunkOutput: boolean;
};

/**
 * Returns where the reply to `request` reports ids. Fields that the simulated release does not know are ignored. Throws `engine_rejected`
 * for fields that the release knows but does not support in a stream.
 */
export function requestedIds(exchange: Exchange, state: SglangState, request: ChatRequest): RequestedIds {
  const stream = request.stream ?? false;
  const streamsIds = isAtLeast(state, 'stream_ids');
  const metaInfo = request.return_meta_info === true;
  const prompt = request.return_prompt_token_ids === true;
  const output = request.return_token_ids === true && isAtLeast(state, 'token_ids');
  if (stream) {
    if (metaInfo) throw unsupportedInStreams('return_meta_info');
    if (prompt && !streamsIds) throw unsupportedInStreams('return_prompt_token_ids');
    if (output && !streamsIds) throw unsupportedInStreams('return_token_ids');
  }
  const extension = isAtLeast(state, 'sglext');
  const isInExtension = (field: 'input' | 'output'): boolean =>
    extension &&
    (request[`return_${field}_ids_in_sglext`] === true || exchange.header(`x-sglext-return-${field}-ids`) === '1');
  return {
    metaInfo,
    choicePrompt: prompt || output,
    choiceOutput: output,
    extensionInput: isInExtension('input'),
    extensionOutput: isInExtension('output'),
    chunkPrompt: stream && (prompt || output),
    chunkOutput: stream && output,
  };
}

function unsupportedInStreams(field: string): FloeError {
  return new FloeError(
    'engine_rejected',
    `${field} is not supported with streaming. Please set stream=false when using ${field}=true.`,
  );
}

type SessionFields = { readonly session_id?: string | null | undefined };

/**
 * Returns the session id from the header of SGLang's router, from floe's own header, or from the body; `null` when the caller sent none.
 */
export function sessionIdOf(exchange: Exchange, request: SessionFields): string | null {
  return exchange.header('x-smg-routing-key') ?? exchange.header('x-session-id') ?? request.session_id ?? null;
}

/** Counts the call for the fault injector and returns its ids and faults. Unlike vLLM, SGLang reads the request id from the body only. */
export function readCallHead(
  exchange: Exchange,
  { context }: SglangState,
  request: SessionFields & { readonly rid?: string | null | undefined },
): CallHead {
  return newCallHead(context, request.rid ?? null, sessionIdOf(exchange, request));
}

/** Returns the salt of the prefix cache. Prompts share cached blocks only when `cache_salt` and `extra_key` of their requests are equal. */
export function cacheSaltOf(request: {
  cache_salt?: string | null | undefined;
  extra_key?: string | null | undefined;
}): string {
  return JSON.stringify([request.cache_salt ?? '', request.extra_key ?? '']);
}

/** Returns `ids` unchanged. Throws `engine_rejected` for an id outside the vocabulary. */
export function checkIds({ context }: SglangState, ids: readonly number[]): readonly number[] {
  const { vocabulary } = context;
  const unknown = ids.find((id) => !vocabulary.has(id));
  if (unknown === undefined) return ids;
  throw new FloeError(
    'engine_rejected',
    `The input_ids contain values greater than the vocab size (${vocabulary.size}): ${unknown}`,
  );
}
