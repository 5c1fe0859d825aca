import type { GenerateRequest } from '../engine.ts';

/**
 * Tokens of one streamed chunk, where the server can do that; the first token comes at once all the same. One chunk for each
 * token would take several times the CPU, and a harness does not mind text that comes a third of a second later.
 */
const TOKENS_PER_CHUNK = 16;

/**
 * The body of a chat completion, joined from texts that exist already: messages and tools are never stringified again.
 * Sampling is always explicit, because the server's generation_config otherwise overrides the defaults, and
 * `include_reasoning` is forced, because without it a reasoning parser swallows ids and log-probabilities.
 */
export function chatBody(model: string, request: GenerateRequest, maxTokens: number | null, stream: boolean): string {
  const { sampling, toolChoice, parallelToolCalls, stop, responseFormat, seed } = request;
  const rest = JSON.stringify({
    ...(request.tools.length === 0 || toolChoice === null ? {} : { tool_choice: toolChoice }),
    ...(request.tools.length === 0 || parallelToolCalls === null ? {} : { parallel_tool_calls: parallelToolCalls }),
    temperature: sampling.temperature,
    top_p: sampling.top_p,
    top_k: sampling.top_k,
    min_p: sampling.min_p,
    repetition_penalty: sampling.repetition_penalty,
    ...(maxTokens === null ? {} : { max_tokens: maxTokens }),
    ...(stop.length === 0 ? {} : { stop }),
    ...(responseFormat === null ? {} : { response_format: responseFormat }),
    ...(seed === null ? {} : { seed }),
    stream,
    ...(stream ? { stream_options: { include_usage: true }, stream_interval: TOKENS_PER_CHUNK } : {}),
    logprobs: true,
    top_logprobs: 0,
    return_token_ids: true,
    // Each log-probability then names the id that it belongs to, so that a shift between the two lists shows.
    return_tokens_as_token_ids: true,
    include_reasoning: true,
  });
  return `${conversation(model, request)},${rest.slice(1)}`;
}

/** The same conversation, to be rendered and counted instead of answered. */
export function tokenizeBody(model: string, request: GenerateRequest): string {
  return `${conversation(model, request)},"add_generation_prompt":true}`;
}

function conversation(model: string, request: GenerateRequest): string {
  const tools = request.tools.length === 0 ? '' : `,"tools":${request.toolsText}`;
  return `{"model":${JSON.stringify(model)},"messages":[${request.messageTexts.join(',')}]${tools}`;
}
