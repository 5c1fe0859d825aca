import type { GenerateRequest, RenderRequest } from '../engine.ts';

/**
 * As vLLM and SGLang order them: what is cut is judged after the temperature. The server's own order cuts before it, and has
 * samplers that no task asked for.
 */
const SAMPLERS = ['penalties', 'temperature', 'min_p', 'top_k', 'top_p'];

/** Without this a reply repeats its prompt. */
const FIELDS = [
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

/** Seeds are 32 bits there; the largest means none. */
const SEEDS = 2 ** 32 - 1;

export type CompletionOptions = {
  /** Null: up to the end of the context. */
  readonly maxNew: number | null;
  /** Log-probabilities of the distribution that was sampled from. */
  readonly postSampling: boolean;
  readonly contextTokens: number;
};

/** The body of `/completion`. Sampling is always explicit: the server has defaults of its own. `idsJson` are the ids between the brackets. */
export function completionBody(
  model: string,
  request: GenerateRequest,
  idsJson: string,
  { maxNew, postSampling, contextTokens }: CompletionOptions,
): string {
  const { sampling, stop, seed, responseFormat } = request;
  const rest = JSON.stringify({
    model,
    n_predict: maxNew ?? -1,
    samplers: SAMPLERS,
    temperature: sampling.temperature,
    top_p: sampling.top_p,
    top_k: sampling.top_k,
    min_p: sampling.min_p,
    repeat_penalty: sampling.repetition_penalty,
    // The whole prompt, as elsewhere; 0 switches the penalty off.
    repeat_last_n: sampling.repetition_penalty === 1 ? 0 : contextTokens,
    mirostat: 0,
    ...(stop.length === 0 ? {} : { stop }),
    ...(seed === null ? {} : { seed: ((seed % SEEDS) + SEEDS) % SEEDS }),
    ...(responseFormat === null ? {} : { json_schema: schemaOf(responseFormat) }),
    stream: false,
    cache_prompt: true,
    return_tokens: true,
    response_fields: FIELDS,
    n_probs: 1,
    post_sampling_probs: postSampling,
  });
  return `{"prompt":[${idsJson}],${rest.slice(1)}`;
}

function schemaOf(format: NonNullable<GenerateRequest['responseFormat']>): object {
  return format.type === 'json_schema' ? format.json_schema.schema : { type: 'object' };
}

/** Asks for the distribution behind some ids: one token is sampled, and it is `forcedId`, which is of no further use. */
export function distributionBody(model: string, idsJson: string, forcedId: number, count: number): string {
  const rest = JSON.stringify({
    model,
    n_predict: 1,
    samplers: ['temperature'],
    temperature: 0,
    // A bias counts for what is sampled, not for the probabilities before sampling.
    logit_bias: [[forcedId, FORCING_BIAS]],
    stream: false,
    cache_prompt: true,
    return_tokens: true,
    n_probs: count,
    post_sampling_probs: false,
  });
  return `{"prompt":[${idsJson}],${rest.slice(1)}`;
}

/** Logits are some tens. */
const FORCING_BIAS = 10_000;

export function templateBody(
  model: string,
  request: Pick<RenderRequest, 'messageTexts' | 'toolsText' | 'generationPrompt'>,
): string {
  const { messageTexts, toolsText, generationPrompt } = request;
  const rest = JSON.stringify({ model, add_generation_prompt: generationPrompt });
  return `{"messages":[${messageTexts.join(',')}],"tools":${toolsText},${rest.slice(1)}`;
}
