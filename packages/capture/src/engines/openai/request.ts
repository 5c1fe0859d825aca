import type { GenerateRequest } from '../engine.ts';

/** Request fields that an API may not know. A field that the API has refused is left out if the reply does not depend on it. */
const OPTIONAL_FIELDS = ['max_tokens', 'temperature', 'top_p', 'seed', 'parallel_tool_calls'] as const;
export type OptionalField = (typeof OPTIONAL_FIELDS)[number];

export function isOptionalField(name: unknown): name is OptionalField {
  return OPTIONAL_FIELDS.some((field) => field === name);
}

/**
 * Request fields that make servers based on vLLM or SGLang return token ids and log-probabilities. SGLang returns the prompt's ids only with a
 * field of its own, and vLLM ignores that field.
 */
export type TokenFields = {
  readonly return_token_ids: true;
  readonly return_prompt_token_ids?: true;
  readonly logprobs: true;
};

type ChatOptions = {
  readonly stream: boolean;
  /** Fields that the API has refused. */
  readonly unknown: ReadonlySet<OptionalField>;
  /** The fields that request token ids; `null` when the API has none, and only fields of OpenAI's API are sent. */
  readonly tokenFields: TokenFields | null;
};

/**
 * Makes the body of a chat completion. A refused `max_tokens` is sent as `max_completion_tokens`, and other refused fields are left out if
 * {@link isDispensable} allows it.
 */
export function chatBody(
  model: string,
  request: GenerateRequest,
  { stream, unknown, tokenFields }: ChatOptions,
): string {
  const { sampling, tools, toolChoice, parallelToolCalls, maxTokens, stop, responseFormat, seed } = request;
  const optional: Partial<Record<OptionalField, unknown>> = {
    ...(maxTokens === null ? {} : { max_tokens: maxTokens }),
    temperature: sampling.temperature,
    top_p: sampling.top_p,
    ...(seed === null ? {} : { seed }),
    ...(tools.length === 0 || parallelToolCalls === null ? {} : { parallel_tool_calls: parallelToolCalls }),
  };
  const known = Object.fromEntries(
    Object.entries(optional).filter(
      ([field]) => !isOptionalField(field) || !unknown.has(field) || !isDispensable(request, field),
    ),
  );
  const rest = JSON.stringify({
    ...known,
    ...(maxTokens !== null && unknown.has('max_tokens') ? { max_completion_tokens: maxTokens } : {}),
    ...(tools.length === 0 || toolChoice === null ? {} : { tool_choice: toolChoice }),
    ...(stop.length === 0 ? {} : { stop }),
    ...(responseFormat === null ? {} : { response_format: responseFormat }),
    stream,
    ...(stream ? { stream_options: { include_usage: true } } : {}),
    ...(tokenFields === null ? {} : { ...extraSampling(request), ...tokenFields }),
  });
  const messages = request.messageTexts.map(withoutThinking).join(',');
  const toolsPart = tools.length === 0 ? '' : `,"tools":${request.toolsText}`;
  return `{"model":${JSON.stringify(model)},"messages":[${messages}]${toolsPart},${rest.slice(1)}`;
}

/**
 * Whether the field may be left out because the reply has the same distribution without it. A field that changes how a task is sampled is
 * never left out.
 */
export function isDispensable(request: GenerateRequest, field: OptionalField): boolean {
  switch (field) {
    case 'max_tokens':
      return true;
    case 'temperature':
      return request.sampling.temperature === 1;
    case 'top_p':
      return request.sampling.top_p === 1;
    case 'seed':
      // A seed guarantees no exact repetition, not even in OpenAI's own API, so it may be left out.
      return true;
    case 'parallel_tool_calls':
      return request.parallelToolCalls !== false;
  }
}

/**
 * Returns the sampling parameters that the task sets and that OpenAI's API has no field for. Servers made from vLLM or SGLang, which return
 * token ids, have fields with these names.
 */
export function extraSampling({ sampling }: GenerateRequest): Record<string, number> {
  const { top_k, min_p, repetition_penalty } = sampling;
  return {
    ...(top_k === 0 ? {} : { top_k }),
    ...(min_p === 0 ? {} : { min_p }),
    ...(repetition_penalty === 1 ? {} : { repetition_penalty }),
  };
}

/**
 * Removes the thinking from a message, given as JSON text, because it is not a field of OpenAI's API and some APIs refuse it. A text
 * without the field's quoted name is returned unparsed; this name occurs only as a key, because quotes inside JSON strings are escaped.
 */
function withoutThinking(text: string): string {
  if (!text.includes('"reasoning_content":')) return text;
  const { reasoning_content: _, ...message } = JSON.parse(text) as Record<string, unknown>;
  return JSON.stringify(message);
}
