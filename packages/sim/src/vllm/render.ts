import { randomUUID } from 'node:crypto';
import type { SimContext } from '../context.ts';
import type { Exchange } from '../http.ts';
import { renderConstraint } from '../requested-constraint.ts';
import type { SamplingParams } from '../sampler.ts';
import { chatTask } from './chat-task.ts';
import { completionMaxTokens, completionPrompts } from './completions.ts';
import {
  type ChatRequest,
  type CompletionRequest,
  chatRequestSchema,
  completionRequestSchema,
  parseRequest,
  samplingParams,
} from './request.ts';
import { reportedIds } from './tokenize.ts';

/** Value of vLLM's sampling parameter `output_kind` that makes the engine return only the final output. */
const FINAL_ONLY = 2;
/** Value of vLLM's sampling parameter `output_kind` that makes the engine return the new tokens of each step. */
const DELTA = 1;

/** Handles `POST /v1/chat/completions/render`: converts a chat request to the equivalent request to `/inference/v1/generate`. */
export async function renderChatRequest(exchange: Exchange, context: SimContext): Promise<void> {
  const request = parseRequest(context, chatRequestSchema, await exchange.body(), 'chat completion request');
  const { promptIds, params } = chatTask(context, request);
  const { thinkOpen, thinkClose } = context.vocabulary.special;
  const logprobs = request.logprobs === true ? (request.top_logprobs ?? 0) : null;
  exchange.json(200, {
    request_id: newId('chatcmpl'),
    token_ids: reportedIds(exchange, context, promptIds),
    sampling_params: wireParams(request, params, logprobs),
    ...generateFields(request),
    reasoning_ended: promptIds.lastIndexOf(thinkClose) > promptIds.lastIndexOf(thinkOpen),
    reasoning_parser_kwargs: {
      chat_template_kwargs: {
        add_generation_prompt: request.add_generation_prompt ?? true,
        continue_final_message: request.continue_final_message ?? false,
      },
    },
  });
}

/** Handles `POST /v1/completions/render`: converts a completion request to one request to `/inference/v1/generate` per prompt. */
export async function renderCompletionRequest(exchange: Exchange, context: SimContext): Promise<void> {
  const request = parseRequest(context, completionRequestSchema, await exchange.body(), 'completion request');
  const rendered = completionPrompts(context, request).map((promptIds) => {
    const maxTokens = completionMaxTokens(context, request, promptIds);
    const params = samplingParams(request, context.config.generationConfig, maxTokens, null);
    return {
      request_id: newId('cmpl'),
      token_ids: reportedIds(exchange, context, promptIds),
      sampling_params: wireParams(request, params, request.logprobs ?? null),
      ...generateFields(request),
    };
  });
  exchange.json(200, rendered);
}

function newId(prefix: string): string {
  return `${prefix}-${randomUUID().replaceAll('-', '')}`;
}

/** Returns the sampling parameters as they are sent. Parameters that have the engine's default value are left out. */
function wireParams(request: ChatRequest | CompletionRequest, params: SamplingParams, logprobs: number | null): object {
  return {
    ...((request.n ?? 1) === 1 ? {} : { n: request.n }),
    presence_penalty: params.presencePenalty,
    frequency_penalty: params.frequencyPenalty,
    repetition_penalty: params.repetitionPenalty,
    temperature: params.temperature,
    top_p: params.topP,
    ...(params.topK === 0 ? {} : { top_k: params.topK }),
    min_p: params.minP,
    ...(params.seed === null ? {} : { seed: params.seed }),
    stop: params.stop,
    stop_token_ids: params.stopTokenIds,
    ...(params.ignoreEos ? { ignore_eos: true } : {}),
    max_tokens: params.maxTokens,
    ...(logprobs === null ? {} : { logprobs }),
    skip_special_tokens: params.skipSpecial,
    ...(params.includeStop ? { include_stop_str_in_output: true } : {}),
    ...(params.constraint === null ? {} : { structured_outputs: renderConstraint(params.constraint) }),
    ...(request.routed_experts_prompt_start
      ? { routed_experts_prompt_start: request.routed_experts_prompt_start }
      : {}),
    bad_words: [],
    output_kind: request.stream === true ? DELTA : FINAL_ONLY,
    skip_clone: true,
    skip_reading_prefix_cache: false,
  };
}

function generateFields(request: ChatRequest | CompletionRequest): object {
  const stream = request.stream ?? false;
  return {
    token_offsets: null,
    features: null,
    content_parts: null,
    return_token_ids: request.return_token_ids ?? null,
    output_mode: 'tokens',
    model: request.model ?? null,
    stream,
    stream_options: stream ? (request.stream_options ?? null) : null,
    cache_salt: request.cache_salt ?? null,
    priority: request.priority ?? 0,
    kv_transfer_params: null,
    ec_transfer_params: null,
  };
}
