import { FloeError } from '@floe-rl/core';
import type { GenerateRequest, RenderRequest } from '../engine.ts';

export const GENERATE_PATH = '/inference/v1/generate';
export const RENDER_PATH = '/v1/chat/completions/render';
export const DERENDER_PATH = '/v1/chat/completions/derender';

/**
 * Number of tokens per streamed chunk, on servers that support the setting; the first token is always sent immediately. One chunk per token
 * would cost several times the CPU time. At 16 tokens, text is delayed by about a third of a second, which a harness tolerates.
 */
const TOKENS_PER_CHUNK = 16;

/**
 * Number of ids per streamed chunk of a reply to a prompt of ids, on servers that support the setting. The first id is always sent
 * immediately. A reply often begins with ids that are not shown, and the first visible id then waits for the second chunk. With 4 ids and 8 ms
 * per id, it waits at most 24 ms. `npm run bench -- streams` measures what the chunks cost.
 */
export const IDS_PER_CHUNK = 4;

/** Request fields of chat completions that some vLLM-compatible servers refuse, and that can be left out. */
export const OPTIONAL_CHAT_FIELDS = [
  'stream_interval',
  'return_tokens_as_token_ids',
  'include_reasoning',
  'top_k',
  'min_p',
  'repetition_penalty',
  'cache_salt',
] as const;

/** Request fields without which a reply cannot be trained on. */
export const TOKEN_ID_FIELDS = ['return_token_ids', 'logprobs'] as const;

type ChatField = (typeof OPTIONAL_CHAT_FIELDS)[number] | (typeof TOKEN_ID_FIELDS)[number];

/** Values of sampling fields that have no effect. A field with such a value is left out when the server does not support the field. */
const NEUTRAL = { top_k: 0, min_p: 0, repetition_penalty: 1 } as const;

export type ChatOptions = {
  readonly model: string;
  readonly maxTokens: number | null;
  readonly stream: boolean;
  /** Number of likely tokens to report for each position, in addition to the sampled one; none by default. */
  readonly topLogprobs?: number;
  /** Names of the request fields that the server refuses, which are left out. */
  readonly unknown: ReadonlySet<string>;
};

/**
 * Makes the body of a chat completion. Messages and tools are inserted as the JSON texts that the request already has, so that they are not
 * serialised for every call. All sampling parameters are sent explicitly, because the server's generation_config otherwise overrides the
 * defaults. `include_reasoning` is set, because without it a reasoning parser drops ids and log-probabilities. Throws `unsupported` for
 * sampling that needs a field which the server refuses.
 */
export function chatBody(request: GenerateRequest, options: ChatOptions): string {
  const { model, maxTokens, stream, unknown, topLogprobs = 0 } = options;
  const { stop, responseFormat, seed } = request;
  const knows = (field: ChatField): boolean => !unknown.has(field);
  // One object is extended, because a spread for each field costs several times as much and every model call needs the text.
  const fields: Record<string, unknown> = { ...choiceFields(request), ...samplingFields(request, unknown) };
  if (maxTokens !== null) fields.max_tokens = maxTokens;
  if (stop.length > 0) fields.stop = stop;
  if (responseFormat !== null) fields.response_format = responseFormat;
  if (seed !== null) fields.seed = seed;
  if (request.policyVersion !== null && knows('cache_salt')) fields.cache_salt = request.policyVersion;
  fields.stream = stream;
  if (stream) fields.stream_options = { include_usage: true };
  if (stream && knows('stream_interval')) fields.stream_interval = TOKENS_PER_CHUNK;
  if (knows('logprobs')) {
    fields.logprobs = true;
    fields.top_logprobs = topLogprobs;
  }
  if (knows('return_token_ids')) fields.return_token_ids = true;
  // With this field, each log-probability names its token id. A shift between the list of ids and the list of log-probabilities is then
  // detected.
  if (knows('return_tokens_as_token_ids')) fields.return_tokens_as_token_ids = true;
  if (knows('include_reasoning')) fields.include_reasoning = true;
  const rest = JSON.stringify(fields);
  return `${conversationJson(model, request.messageTexts, request.toolsText)},${rest.slice(1)}`;
}

/** Returns the request fields about tool calls. The result is empty for a request without tools. */
export function choiceFields({ tools, toolChoice, parallelToolCalls }: GenerateRequest): object {
  if (tools.length === 0) return {};
  return {
    ...(toolChoice === null ? {} : { tool_choice: toolChoice }),
    ...(parallelToolCalls === null ? {} : { parallel_tool_calls: parallelToolCalls }),
  };
}

/**
 * Returns the sampling parameters under vLLM's field names, which are the same for chat completions and `/inference/v1/generate`. Throws
 * `unsupported` when a parameter needs a field which the server refuses.
 */
export function samplingFields({ sampling }: GenerateRequest, unknown: ReadonlySet<string>): object {
  const { temperature, top_p, ...others } = sampling;
  const fields: Record<string, number> = { temperature, top_p };
  for (const field of ['top_k', 'min_p', 'repetition_penalty'] as const) {
    if (!unknown.has(field)) fields[field] = others[field];
    else if (others[field] !== NEUTRAL[field]) {
      throw new FloeError('unsupported', `sampling.${field}: the engine does not know it`, { field });
    }
  }
  return fields;
}

/** Makes the body of a request that renders a conversation or counts its tokens. */
export function renderBody(
  model: string,
  { messageTexts, toolsText, generationPrompt }: Pick<RenderRequest, 'messageTexts' | 'toolsText' | 'generationPrompt'>,
): string {
  return `${conversationJson(model, messageTexts, toolsText)},"add_generation_prompt":${generationPrompt}}`;
}

/** Makes the beginning of a body that contains a conversation, without the closing brace. */
export function conversationJson(model: string, messageTexts: readonly string[], toolsText: string): string {
  const tools = toolsText === '[]' ? '' : `,"tools":${toolsText}`;
  return `{"model":${JSON.stringify(model)},"messages":[${messageTexts.join(',')}]${tools}`;
}
