import type { GenerateRequest } from '../engine.ts';

/** Which of SGLang's ways to tell ids a chat completion is asked to use. */
export type IdFlags = {
  /** `choices[].meta_info` with the ids beside their log-probabilities; not in streams. */
  readonly metaInfo: boolean;
  /** `choices[].token_ids`. */
  readonly tokenIds: boolean;
  /** `choices[].prompt_token_ids`. */
  readonly promptIds: boolean;
  /** `sglext.input_ids` and `sglext.output_ids`, in a stream as its last chunk but the usage. */
  readonly sglext: boolean;
};

/** What a call is sampled with beside what its request says. */
export type ChatOptions = {
  readonly flags: IdFlags;
  readonly stream: boolean;
  readonly maxTokens: number | null;
  /** `return_routed_experts`. */
  readonly experts: boolean;
  /** Ids that end the reply beside the model's own. */
  readonly stopIds?: readonly number[];
};

/**
 * Messages for a prompt that is given as ids. The server needs some, and reads nothing from them; those of the conversation would
 * be sent for nothing.
 */
const STAND_IN = '{"role":"user","content":"-"}';

/** Turns on what `flags` name. `sglext` has two spellings: headers, which a router may drop, and these. */
export function idFlagFields(flags: IdFlags): Record<string, boolean> {
  return {
    ...(flags.metaInfo ? { return_meta_info: true } : {}),
    ...(flags.tokenIds ? { return_token_ids: true } : {}),
    ...(flags.promptIds ? { return_prompt_token_ids: true } : {}),
    ...(flags.sglext ? { return_input_ids_in_sglext: true, return_output_ids_in_sglext: true } : {}),
  };
}

/**
 * The body of a chat completion, joined from texts that exist already. Sampling is always explicit, because the server otherwise
 * takes defaults from the model's generation_config.
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
  const messages = request.prompt === null ? request.messageTexts.join(',') : STAND_IN;
  return `${conversation(model, messages, tools ? request.toolsText : '[]')}${ids},${rest.slice(1)}`;
}

/** What the body of `/generate` may hold. */
export type NativeOptions = {
  readonly maxTokens: number | null;
  /** Whether the server knows `sampling_seed`; one that does not fails on it. */
  readonly seed: boolean;
  readonly experts: boolean;
};

/**
 * The body of `/generate`. Delimiters are often special tokens, so they are kept in the text. A bound of null must be said:
 * without one it stops after 128 tokens.
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
    // The older of the two names of the prefix cache's salt here; chat completions have the newer one from the start.
    ...(request.cacheSalt === null ? {} : { extra_key: request.cacheSalt }),
    ...(options.experts ? { return_routed_experts: true } : {}),
  });
  const rid = request.completionId === '' ? '' : `"rid":${JSON.stringify(request.completionId)},`;
  return `{${rid}"input_ids":[${promptJson(request)}],${rest.slice(1)}`;
}

/** A conversation to be rendered. `generationPrompt` is only asked about where the server knows the field. */
export function tokenizeBody(
  model: string,
  messageTexts: readonly string[],
  toolsText: string,
  generationPrompt: boolean | null = null,
): string {
  const flag = generationPrompt === null ? '' : `,"add_generation_prompt":${generationPrompt}`;
  return `${conversation(model, messageTexts.join(','), toolsText)}${flag}}`;
}

function conversation(model: string, messages: string, toolsText: string): string {
  const tools = toolsText === '[]' ? '' : `,"tools":${toolsText}`;
  return `{"model":${JSON.stringify(model)},"messages":[${messages}]${tools}`;
}

/** The prompt and what was sampled of the reply already, between brackets. */
function promptJson({ prompt, begun }: GenerateRequest): string {
  const own = prompt?.json.toString('latin1') ?? '';
  if (begun === null || begun.responseIds.length === 0) return own;
  return `${own}${own === '' ? '' : ','}${begun.responseIds.join(',')}`;
}

/** SGLang switches the limit off by -1 and refuses 0. */
function topK({ sampling }: GenerateRequest): number {
  return sampling.top_k === 0 ? -1 : sampling.top_k;
}

function jsonSchemaOf({ responseFormat }: GenerateRequest): { json_schema?: string } {
  if (responseFormat === null) return {};
  const schema = responseFormat.type === 'json_object' ? { type: 'object' } : responseFormat.json_schema.schema;
  return { json_schema: JSON.stringify(schema) };
}
