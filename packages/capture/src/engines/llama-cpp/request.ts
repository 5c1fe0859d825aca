import type { GenerateRequest, RenderRequest } from '../engine.ts';

/**
 * The order in which the server applies its samplers. As in vLLM and SGLang, tokens are excluded after the temperature was applied. The
 * server's default order excludes tokens first, and contains additional samplers.
 */
const SAMPLERS = ['penalties', 'temperature', 'min_p', 'top_k', 'top_p'];

/** The fields that the server includes in a reply. Without this list a reply repeats its prompt. */
const RESPONSE_FIELDS = [
  'model',
  'tokens',
  'tokens_predicted',
  'tokens_evaluated',
  'truncated',
  'stop_type',
  'stopping_word',
  'timings',
  'completion_probabilities',
];

/** Number of valid seeds. A seed has 32 bits, and the largest value means that no seed is set. */
const SEED_COUNT = 2 ** 32 - 1;

type CompletionOptions = {
  /** Maximum number of tokens that this call may sample; `null` when only the context length limits them. */
  readonly maxNewTokens: number | null;
  /** Whether the server returns log-probabilities of the distribution that was sampled from, instead of the model's own. */
  readonly postSampling: boolean;
  readonly contextTokens: number;
};

/**
 * Makes the body of `/completion`. `idsJson` is the JSON text of the prompt ids without brackets. All sampling parameters are sent
 * explicitly, because the server's defaults differ from floe's.
 */
export function completionBody(
  model: string,
  request: GenerateRequest,
  idsJson: string,
  { maxNewTokens, postSampling, contextTokens }: CompletionOptions,
): string {
  const { sampling, stop, seed, responseFormat } = request;
  const rest = JSON.stringify({
    model,
    n_predict: maxNewTokens ?? -1,
    samplers: SAMPLERS,
    temperature: sampling.temperature,
    top_p: sampling.top_p,
    top_k: sampling.top_k,
    min_p: sampling.min_p,
    repeat_penalty: sampling.repetition_penalty,
    // The repetition penalty covers the whole context, as in other engines. The value 0 switches it off.
    repeat_last_n: sampling.repetition_penalty === 1 ? 0 : contextTokens,
    mirostat: 0,
    ...(stop.length === 0 ? {} : { stop }),
    ...(seed === null ? {} : { seed: ((seed % SEED_COUNT) + SEED_COUNT) % SEED_COUNT }),
    ...(responseFormat === null ? {} : { json_schema: schemaOf(responseFormat) }),
    stream: false,
    cache_prompt: true,
    return_tokens: true,
    response_fields: RESPONSE_FIELDS,
    n_probs: 1,
    post_sampling_probs: postSampling,
  });
  return `{"prompt":[${idsJson}],${rest.slice(1)}`;
}

function schemaOf(format: NonNullable<GenerateRequest['responseFormat']>): object {
  return format.type === 'json_schema' ? format.json_schema.schema : { type: 'object' };
}

/**
 * Makes the body that requests the probabilities of the next token after the given ids. The server has to sample one token for this. It is
 * forced to sample `forcedId`, which is then discarded.
 */
export function distributionBody(model: string, idsJson: string, forcedId: number, count: number): string {
  const rest = JSON.stringify({
    model,
    n_predict: 1,
    samplers: ['temperature'],
    temperature: 0,
    // The bias determines the sampled token. It does not change the reported probabilities, because they are computed before sampling.
    logit_bias: [[forcedId, FORCING_BIAS]],
    stream: false,
    cache_prompt: true,
    return_tokens: true,
    n_probs: count,
    post_sampling_probs: false,
  });
  return `{"prompt":[${idsJson}],${rest.slice(1)}`;
}

/** Bias that forces a token. It is far above any logit, because logits are below 100. */
const FORCING_BIAS = 10_000;

/** The messages and tools that the chat template renders. */
export type Conversation = Pick<RenderRequest, 'messageTexts' | 'toolsText' | 'generationPrompt'>;

/** Makes the body of `/apply-template`, which renders a conversation to text. */
export function templateBody(model: string, { messageTexts, toolsText, generationPrompt }: Conversation): string {
  const rest = JSON.stringify({ model, add_generation_prompt: generationPrompt });
  return `{"messages":[${messageTexts.join(',')}],"tools":${toolsText},${rest.slice(1)}`;
}
