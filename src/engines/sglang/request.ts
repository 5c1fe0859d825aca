import type { GenerateRequest } from '../engine.ts';

/** The fields in which a chat completion is requested to report ids. */
export type IdFlags = {
  /** `choices[].meta_info`, with ids and log-probabilities; not in streams. */
  readonly metaInfo: boolean;
  /** `choices[].token_ids`. */
  readonly tokenIds: boolean;
  /** `choices[].prompt_token_ids`. */
  readonly promptIds: boolean;
  /** `sglext.input_ids` and `sglext.output_ids`; in a stream they are in the last chunk before the usage. */
  readonly sglext: boolean;
};

/** What the body of a chat completion contains in addition to the request. */
export type ChatOptions = {
  readonly flags: IdFlags;
  readonly stream: boolean;
  readonly maxTokens: number | null;
  /** Whether to set `return_routed_experts`. */
  readonly experts: boolean;
  /** Ids that end the reply, in addition to the model's own. */
  readonly stopIds?: readonly number[];
};

/** The messages of a prompt that is given as ids: the server requires some and ignores them, so that the real ones are not sent. */
const PLACEHOLDER_MESSAGE = '{"role":"user","content":"-"}';

/** The request fields of the flags. `sglext` can also be requested by headers, but a router may drop those. */
function idFlagFields(flags: IdFlags): Record<string, boolean> {
  return {
    ...(flags.metaInfo ? { return_meta_info: true } : {}),
    ...(flags.tokenIds ? { return_token_ids: true } : {}),
    ...(flags.promptIds ? { return_prompt_token_ids: true } : {}),
    ...(flags.sglext ? { return_input_ids_in_sglext: true, return_output_ids_in_sglext: true } : {}),
  };
}

/**
 * The body of a chat completion, concatenated from JSON texts that exist already. Sampling is always explicit, because the server
 * takes defaults from the model's generation_config otherwise.
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
    separate_reasoning: true,
    ...(request.completionId === '' ? {} : { rid: request.completionId }),
    ...(request.cacheSalt === null ? {} : { cache_salt: request.cacheSalt }),
    ...(options.experts ? { return_routed_experts: true } : {}),
    ...idFlagFields(options.flags),
  });
  const ids = request.prompt === null ? '' : `,"input_ids":[${promptJson(request)}]`;
  const messages = request.prompt === null ? request.messageTexts.join(',') : PLACEHOLDER_MESSAGE;
  return `${conversationJson(model, messages, tools ? request.toolsText : '[]')}${ids},${rest.slice(1)}`;
}

/** What the body of `/generate` contains in addition to the request. */
type NativeOptions = {
  readonly maxTokens: number | null;
  /** Whether the server supports `sampling_seed`; one that does not fails on it. */
  readonly seed: boolean;
  readonly experts: boolean;
};

/**
 * The body of `/generate`. Special tokens are kept in the text, because delimiters of calls and thinking often are such tokens. A bound
 * of `null` is sent explicitly: without the field the reply ends after 128 tokens.
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
    // The older of the salt's two names in this endpoint; chat completions have always had the newer one.
    ...(request.cacheSalt === null ? {} : { extra_key: request.cacheSalt }),
    ...(options.experts ? { return_routed_experts: true } : {}),
  });
  const rid = request.completionId === '' ? '' : `"rid":${JSON.stringify(request.completionId)},`;
  return `{${rid}"input_ids":[${promptJson(request)}],${rest.slice(1)}`;
}

/** The body of a conversation to be rendered. `generationPrompt` is `null` when the server does not support the field. */
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

/** The ids of the prompt and of `resumeFrom`, as JSON text between the brackets. */
function promptJson({ prompt, resumeFrom }: GenerateRequest): string {
  const own = prompt?.json.toString('latin1') ?? '';
  if (resumeFrom === null || resumeFrom.responseIds.length === 0) return own;
  return `${own}${own === '' ? '' : ','}${resumeFrom.responseIds.join(',')}`;
}

/** SGLang switches the limit off with -1 and refuses 0. */
function topK({ sampling }: GenerateRequest): number {
  return sampling.top_k === 0 ? -1 : sampling.top_k;
}

function jsonSchemaOf({ responseFormat }: GenerateRequest): { json_schema?: string } {
  if (responseFormat === null) return {};
  const schema = responseFormat.type === 'json_object' ? { type: 'object' } : responseFormat.json_schema.schema;
  return { json_schema: JSON.stringify(schema) };
}
