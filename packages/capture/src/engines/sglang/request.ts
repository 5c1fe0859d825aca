import type { GenerateRequest } from '../engine.ts';

/** The reply fields that a request asks for, in which chat completions report token ids. */
export type IdFlags = {
  /** Requests `choices[].meta_info`, which has the sampled token ids and their log-probabilities. Streams do not contain it. */
  readonly metaInfo: boolean;
  /** Requests `choices[].token_ids`, the sampled token ids. */
  readonly tokenIds: boolean;
  /** Requests `choices[].prompt_token_ids`, the token ids of the prompt. */
  readonly promptIds: boolean;
  /** Requests `sglext.input_ids` and `sglext.output_ids`. A stream contains them in the last chunk before the usage. */
  readonly sglext: boolean;
};

/** Properties of a chat completion's body that do not follow from the `GenerateRequest`. */
export type ChatOptions = {
  readonly flags: IdFlags;
  readonly stream: boolean;
  readonly maxTokens: number | null;
  /** Whether to ask for the routed experts with `return_routed_experts`. */
  readonly experts: boolean;
  /** Number of likely tokens to report for each position; none by default. */
  readonly topLogprobs?: number;
  /** Token ids that end the reply, in addition to the model's own. */
  readonly stopIds?: readonly number[];
};

/**
 * Message that is sent instead of the conversation when the prompt is given as token ids. The server requires a message then, but ignores
 * its content.
 */
const PLACEHOLDER_MESSAGE = '{"role":"user","content":"-"}';

/** Returns the request fields that set these flags. `sglext` can also be requested by headers, but a router may drop headers. */
function idFlagFields(flags: IdFlags): Record<string, boolean> {
  return {
    ...(flags.metaInfo ? { return_meta_info: true } : {}),
    ...(flags.tokenIds ? { return_token_ids: true } : {}),
    ...(flags.promptIds ? { return_prompt_token_ids: true } : {}),
    ...(flags.sglext ? { return_input_ids_in_sglext: true, return_output_ids_in_sglext: true } : {}),
  };
}

/**
 * Makes the body of a chat completion. Messages and tools are inserted as the JSON texts that the request already has. All sampling
 * parameters are sent explicitly, because the server otherwise takes defaults from the model's generation_config.
 */
export function chatBody(model: string, request: GenerateRequest, options: ChatOptions): string {
  const { sampling, toolChoice, parallelToolCalls, stop, responseFormat, seed } = request;
  const tools = request.tools.length > 0;
  const rest = JSON.stringify({
    ...(tools && toolChoice !== null ? { tool_choice: toolChoice } : {}),
    ...(tools && parallelToolCalls !== null ? { parallel_tool_calls: parallelToolCalls } : {}),
    temperature: sampling.temperature,
    top_p: sampling.top_p,
    top_k: topK(request),
    min_p: sampling.min_p,
    repetition_penalty: sampling.repetition_penalty,
    ...(options.maxTokens === null ? {} : { max_tokens: options.maxTokens }),
    ...(stop.length === 0 ? {} : { stop }),
    ...(options.stopIds === undefined ? {} : { stop_token_ids: options.stopIds }),
    ...(responseFormat === null ? {} : { response_format: responseFormat }),
    ...(seed === null ? {} : { seed }),
    stream: options.stream,
    ...(options.stream ? { stream_options: { include_usage: true } } : {}),
    logprobs: true,
    ...(options.topLogprobs === undefined ? {} : { top_logprobs: options.topLogprobs }),
    separate_reasoning: true,
    ...(request.completionId === '' ? {} : { rid: request.completionId }),
    ...(request.policyVersion === null ? {} : { cache_salt: request.policyVersion }),
    ...(options.experts ? { return_routed_experts: true } : {}),
    ...idFlagFields(options.flags),
  });
  const ids = request.prompt === null ? '' : `,"input_ids":[${promptJson(request)}]`;
  const messages = request.prompt === null ? request.messageTexts.join(',') : PLACEHOLDER_MESSAGE;
  return `${conversationJson(model, messages, tools ? request.toolsText : '[]')}${ids},${rest.slice(1)}`;
}

/** Values for the body of a `/generate` request that the caller determines in addition to the `GenerateRequest`. */
type NativeOptions = {
  readonly maxTokens: number | null;
  /** Whether to send the field `sampling_seed`. A server that does not support the field answers with an error. */
  readonly seed: boolean;
  readonly experts: boolean;
};

/**
 * Makes the body of `/generate`. Special tokens are kept in the reply's text, because the delimiters of tool calls and thinking are often
 * special tokens. When there is no token limit, `null` is sent explicitly, because without the field the reply would end after 128 tokens.
 */
export function nativeBody(request: GenerateRequest, options: NativeOptions): string {
  const { sampling, stop, seed } = request;
  const rest = JSON.stringify({
    sampling_params: {
      temperature: sampling.temperature,
      top_p: sampling.top_p,
      top_k: topK(request),
      min_p: sampling.min_p,
      repetition_penalty: sampling.repetition_penalty,
      max_new_tokens: options.maxTokens,
      ...(stop.length === 0 ? {} : { stop }),
      ...(seed === null || !options.seed ? {} : { sampling_seed: seed }),
      ...jsonSchemaOf(request),
      skip_special_tokens: false,
      spaces_between_special_tokens: false,
    },
    return_logprob: true,
    logprob_start_len: -1,
    return_prompt_token_ids: true,
    stream: false,
    // All releases of `/generate` accept the salt as `extra_key`. The newer name `cache_salt` is accepted by chat completions.
    ...(request.policyVersion === null ? {} : { extra_key: request.policyVersion }),
    ...(options.experts ? { return_routed_experts: true } : {}),
  });
  const rid = request.completionId === '' ? '' : `"rid":${JSON.stringify(request.completionId)},`;
  return `{${rid}"input_ids":[${promptJson(request)}],${rest.slice(1)}`;
}

/**
 * Makes the body of a `/tokenize` request that renders a conversation. `generationPrompt` is `null` when the server does not support
 * `add_generation_prompt`.
 */
export function tokenizeBody(
  model: string,
  messageTexts: readonly string[],
  toolsText: string,
  generationPrompt: boolean | null = null,
): string {
  const flag = generationPrompt === null ? '' : `,"add_generation_prompt":${generationPrompt}`;
  return `${conversationJson(model, messageTexts.join(','), toolsText)}${flag}}`;
}

function conversationJson(model: string, messages: string, toolsText: string): string {
  const tools = toolsText === '[]' ? '' : `,"tools":${toolsText}`;
  return `{"model":${JSON.stringify(model)},"messages":[${messages}]${tools}`;
}

/** Returns the token ids of the prompt, followed by the token ids of `resumeFrom`, as JSON text without brackets. */
function promptJson({ prompt, resumeFrom }: GenerateRequest): string {
  const own = prompt?.json.toString('latin1') ?? '';
  if (resumeFrom === null || resumeFrom.responseIds.length === 0) return own;
  return `${own}${own === '' ? '' : ','}${resumeFrom.responseIds.join(',')}`;
}

/** Converts `top_k` to SGLang's notation: SGLang switches the limit off with -1 and refuses 0. */
function topK({ sampling }: GenerateRequest): number {
  return sampling.top_k === 0 ? -1 : sampling.top_k;
}

function jsonSchemaOf({ responseFormat }: GenerateRequest): { json_schema?: string } {
  if (responseFormat === null) return {};
  const schema = responseFormat.type === 'json_object' ? { type: 'object' } : responseFormat.json_schema.schema;
  return { json_schema: JSON.stringify(schema) };
}
