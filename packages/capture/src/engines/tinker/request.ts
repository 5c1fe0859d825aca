import type { FloeError } from '@floe-rl/core';
import { forcesCall } from '../constraint.ts';
import type { GenerateRequest } from '../engine.ts';
import type { EngineServer } from '../engine-server.ts';

/** Number of valid seeds. Servers store a seed in 32 bits and refuse negative ones. */
const SEED_COUNT = 2 ** 31;

/** The `stop` field of a request. It contains either ids of tokens or strings, because the API does not accept a mixture. */
type StopField = readonly number[] | readonly string[];

type SampleOptions = {
  /** The prompt's ids as the text of a JSON array without brackets. */
  readonly idsJson: string;
  readonly maxTokens: number;
  readonly stop: StopField;
};

/** Makes the body of a sampling request, without the fields that identify its sampling session. */
export function sampleBody({ sampling, seed }: GenerateRequest, { idsJson, maxTokens, stop }: SampleOptions): string {
  const params = {
    max_tokens: maxTokens,
    temperature: sampling.temperature,
    top_p: sampling.top_p,
    top_k: sampling.top_k === 0 ? -1 : sampling.top_k,
    stop,
    ...(seed === null ? {} : { seed: ((seed % SEED_COUNT) + SEED_COUNT) % SEED_COUNT }),
  };
  return bodyOf(idsJson, params, {});
}

/** Makes the body of a request that samples `maxTokens` tokens at a temperature, without a stop, to measure log-probabilities. */
export function probeBody(ids: readonly number[], temperature: number, maxTokens: number): string {
  return bodyOf(ids.join(','), { max_tokens: maxTokens, temperature, seed: 0, stop: [] }, {});
}

/** Makes the body of a request for the log-probabilities of a prompt's tokens. One token must be sampled as well. */
export function scoringBody(ids: readonly number[]): string {
  return bodyOf(ids.join(','), { max_tokens: 1 }, { prompt_logprobs: true });
}

function bodyOf(idsJson: string, params: object, fields: object): string {
  const rest = JSON.stringify({ num_samples: 1, sampling_params: params, ...fields });
  return `{"prompt":{"chunks":[{"type":"encoded_text","tokens":[${idsJson}]}]},${rest.slice(1)}`;
}

/**
 * Returns the error for a request with a setting that the API has no field for; `null` when it has fields for all. Such a request is refused,
 * because the reply would be sampled from another distribution than its record states.
 */
export function unsupportedSetting(server: EngineServer, request: GenerateRequest): FloeError | null {
  const { sampling, responseFormat, toolChoice } = request;
  const refuse = (field: string, value: unknown): FloeError =>
    server.error('unsupported', `its API has no field for ${field} ${JSON.stringify(value)}`, { field });
  if (forcesCall(request)) return refuse('tool_choice', toolChoice);
  if (responseFormat !== null) return refuse('response_format', responseFormat.type);
  if (sampling.min_p !== 0) return refuse('min_p', sampling.min_p);
  if (sampling.repetition_penalty !== 1) return refuse('repetition_penalty', sampling.repetition_penalty);
  return null;
}
