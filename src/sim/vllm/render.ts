import { randomUUID } from 'node:crypto';
import type { Exchange } from '../http.ts';
import type { SamplingParams } from '../run.ts';
import { chatTask } from './chat-task.ts';
import { completionMaxTokens, completionPrompts } from './completions.ts';
import type { VllmContext } from './context.ts';
import { renderedForm } from './form.ts';
import {
  type ChatRequest,
  type CompletionRequest,
  chatRequestSchema,
  completionRequestSchema,
  parseRequest,
  samplingParams,
} from './request.ts';
import { toldIds } from './tokenize.ts';

/** POST /v1/chat/completions/render: what the chat request would be as one for token generation. */
export async function renderChatRequest(exchange: Exchange, context: VllmContext): Promise<void> {
  const request = parseRequest(context, chatRequestSchema, await exchange.body(), 'chat completion request');
  const { promptIds, params } = chatTask(context, request);
  const logprobs = request.logprobs === true ? (request.top_logprobs ?? 0) : null;
  exchange.json(200, {
    request_id: newId('chatcmpl'),
    token_ids: toldIds(exchange, context, promptIds),
    sampling_params: wireParams(request, params, logprobs),
    ...generateFields(request),
  });
}

/** POST /v1/completions/render: one request per prompt. */
export async function renderCompletionRequest(exchange: Exchange, context: VllmContext): Promise<void> {
  const request = parseRequest(context, completionRequestSchema, await exchange.body(), 'completion request');
  const rendered = completionPrompts(context, request).map((promptIds) => {
    const maxTokens = completionMaxTokens(context, request, promptIds);
    const params = samplingParams(request, context.config.generationConfig, maxTokens, null);
    return {
      request_id: newId('cmpl'),
      token_ids: toldIds(exchange, context, promptIds),
      sampling_params: wireParams(request, params, request.logprobs ?? null),
      ...generateFields(request),
    };
  });
  exchange.json(200, rendered);
}

function newId(prefix: string): string {
  return `${prefix}-${randomUUID().replaceAll('-', '')}`;
}

function wireParams(request: ChatRequest | CompletionRequest, params: SamplingParams, logprobs: number | null): object {
  return {
    n: request.n ?? 1,
    presence_penalty: params.presencePenalty,
    frequency_penalty: params.frequencyPenalty,
    repetition_penalty: params.repetitionPenalty,
    temperature: params.temperature,
    top_p: params.topP,
    top_k: params.topK,
    min_p: params.minP,
    seed: params.seed,
    stop: params.stop,
    stop_token_ids: params.stopTokenIds,
    ignore_eos: params.ignoreEos,
    max_tokens: params.maxTokens,
    min_tokens: 0,
    logprobs,
    prompt_logprobs: null,
    detokenize: true,
    skip_special_tokens: params.skipSpecial,
    spaces_between_special_tokens: true,
    include_stop_str_in_output: params.includeStop,
    structured_outputs: renderedForm(params.constraint),
    routed_experts_prompt_start: request.routed_experts_prompt_start ?? 0,
  };
}

function generateFields(request: ChatRequest | CompletionRequest): object {
  const stream = request.stream ?? false;
  return {
    token_offsets: null,
    features: null,
    model: request.model ?? null,
    stream,
    stream_options: stream ? (request.stream_options ?? null) : null,
    cache_salt: request.cache_salt ?? null,
    priority: request.priority ?? 0,
    kv_transfer_params: null,
  };
}
