import { FloeError, isRecord } from '@floe-rl/core';
import type { SimConfig } from '../config.ts';
import type { Constraint } from '../policy/constraint.ts';
import type { Policy } from '../policy/policy.ts';
import type { SamplingParams } from '../sampler.ts';
import type { CommonSampling } from './request.ts';

/** Empty defaults for `/generate`, which ignores the model's generation config. */
export const NO_SAMPLING_DEFAULTS: SimConfig['generationConfig'] = {};

type ReplyBounds = {
  readonly maxTokens: number;
  readonly seed: number | null;
  readonly constraint: Constraint | null;
};

/** Returns the sampling parameters of a request; `defaults` supplies the parameters that the request leaves out. */
export function samplingParams(
  request: CommonSampling,
  defaults: SimConfig['generationConfig'],
  bounds: ReplyBounds,
): SamplingParams {
  const stop = request.stop ?? [];
  return {
    temperature: request.temperature ?? defaults.temperature ?? 1,
    topP: request.top_p ?? defaults.top_p ?? 1,
    topK: Math.max(0, request.top_k ?? defaults.top_k ?? -1),
    minP: request.min_p ?? defaults.min_p ?? 0,
    repetitionPenalty: request.repetition_penalty ?? defaults.repetition_penalty ?? 1,
    presencePenalty: request.presence_penalty ?? 0,
    frequencyPenalty: request.frequency_penalty ?? 0,
    maxTokens: bounds.maxTokens,
    stop: typeof stop === 'string' ? (stop === '' ? [] : [stop]) : stop,
    stopTokenIds: request.stop_token_ids ?? [],
    ignoreEos: request.ignore_eos ?? false,
    includeStop: request.no_stop_trim ?? false,
    skipSpecial: request.skip_special_tokens ?? true,
    seed: bounds.seed,
    constraint: bounds.constraint,
  };
}

/**
 * Returns the constraint of the parameter `json_schema` in `/generate`; `null` when it is absent. Throws `engine_rejected` when the schema
 * is invalid, or when the policy has no reply to this prompt that satisfies the schema.
 */
export function jsonSchemaConstraint(
  schema: string | Readonly<Record<string, unknown>> | null | undefined,
  policy: Policy,
  promptIds: readonly number[],
): Constraint | null {
  if (schema === undefined || schema === null) return null;
  const constraint: Constraint = {
    kind: 'json',
    schema: typeof schema === 'string' ? parsedSchema(schema) : schema,
    or_calls: [],
  };
  if (policy.canSatisfy(promptIds, constraint)) return constraint;
  throw new FloeError('engine_rejected', 'json_schema: no reply of the scenario satisfies it');
}

function parsedSchema(text: string): Readonly<Record<string, unknown>> {
  try {
    const value: unknown = JSON.parse(text);
    if (isRecord(value)) return value;
  } catch (cause) {
    throw new FloeError('engine_rejected', `json_schema: is not valid JSON: ${(cause as Error).message}`, {}, cause);
  }
  throw new FloeError('engine_rejected', 'json_schema: is not a JSON object');
}
