import type { GenerateRequest, RenderRequest } from '../engine.ts';

/**
 * The samplers in the order of vLLM and SGLang, which exclude tokens after the temperature was applied. The server's default order
 * excludes them before, and has further samplers.
 */
const SAMPLERS = ['penalties', 'temperature', 'min_p', 'top_k', 'top_p'];

/** The fields to return; without this list a reply repeats its prompt. */
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

/** Number of valid seeds: they have 32 bits, and the largest one means none. */
const SEED_COUNT = 2 ** 32 - 1;

type CompletionOptions = {
  /** Bound on the tokens of this call; `null` for the end of the context. */
  readonly maxNewTokens: number | null;
  /** Whether to return log-probabilities of the distribution that was sampled from, instead of the model's own. */
  readonly postSampling: boolean;
  readonly contextTokens: number;
};

/** The body of `/completion`. Sampling is always explicit, because the server has other defaults. `idsJson`: the ids, without brackets. */
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
    // The penalty covers the whole prompt, as in other engines; 0 switches it off.
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

/** The body that requests the distribution after some ids: one token is sampled, which is `forcedId` and is discarded. */
export function distributionBody(model: string, idsJson: string, forcedId: number, count: number): string {
  const rest = JSON.stringify({
    model,
    n_predict: 1,
    samplers: ['temperature'],
    temperature: 0,
    // A bias affects the sampled token, but not the probabilities before sampling.
    logit_bias: [[forcedId, FORCING_BIAS]],
    stream: false,
    cache_prompt: true,
    return_tokens: true,
    n_probs: count,
    post_sampling_probs: false,
  });
  return `{"prompt":[${idsJson}],${rest.slice(1)}`;
}

/** Far above any logit, which are below 100. */
const FORCING_BIAS = 10_000;

/** A conversation to be rendered. */
export type Conversation = Pick<RenderRequest, 'messageTexts' | 'toolsText' | 'generationPrompt'>;

/** The body of `/apply-template`. */
export function templateBody(model: string, { messageTexts, toolsText, generationPrompt }: Conversation): string {
  const rest = JSON.stringify({ model, add_generation_prompt: generationPrompt });
  return `{"messages":[${messageTexts.join(',')}],"tools":${toolsText},${rest.slice(1)}`;
}
