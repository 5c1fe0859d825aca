import { FloeError } from '@floe-rl/core';
import type { CanonicalRequest } from '../../dialects/dialect.ts';

/** Maximum number of characters of a client's text that an error message quotes. The text itself may be as long as a request body. */
const MAX_QUOTED_CHARS = 128;

export function shortened(text: string): string {
  return text.length <= MAX_QUOTED_CHARS ? text : `${text.slice(0, MAX_QUOTED_CHARS)}…`;
}

/**
 * Maximum number of characters of a model name. Real model names are shorter. The limit is needed because the alias `*` allows any name,
 * and the requested name is stored with its call.
 */
const MAX_MODEL_CHARS = 512;

/**
 * Throws `not_found`, with the models of the session, when a request names a model that the session does not serve. The alias `*` allows
 * any name of up to {@link MAX_MODEL_CHARS}.
 */
export function refuseModel(
  requested: string,
  { modelName, modelAliases = [] }: { readonly modelName: string; readonly modelAliases?: readonly string[] },
): void {
  if (requested === modelName || modelAliases.includes(requested)) return;
  if (modelAliases.includes('*') && requested.length <= MAX_MODEL_CHARS) return;
  const served = [modelName, ...modelAliases].join(', ');
  throw new FloeError('not_found', `no such model: ${shortened(requested)}; there is ${served}`);
}

/**
 * Maximum number of stop strings of a request, more than any supported API allows. Engines compare each stop string after every token,
 * which delays all calls of the engine.
 */
const MAX_STOPS = 64;

/**
 * Maximum number of characters of a request's sampling parameters and tool choice as JSON. Usually a response schema is the largest part. The
 * parameters are stored with each completion, and the context window does not limit their size.
 */
const MAX_SAMPLING_CHARS = 512 * 1024;

/**
 * Throws `schema_violation` for sampling parameters beyond {@link MAX_STOPS} or {@link MAX_SAMPLING_CHARS}, because they would slow down
 * the calls of other sessions.
 */
export function refuseCostlySampling({ samplingAsked, toolChoice }: CanonicalRequest): void {
  const stops = samplingAsked.stop?.length ?? 0;
  if (stops > MAX_STOPS) throw new FloeError('schema_violation', `${stops} stop strings: there may be ${MAX_STOPS}`);
  const chars = JSON.stringify([samplingAsked, toolChoice]).length;
  if (chars > MAX_SAMPLING_CHARS) {
    const what = 'stop strings, response format and tool choice';
    throw new FloeError('schema_violation', `${what} take ${chars} characters: there may be ${MAX_SAMPLING_CHARS}`);
  }
}
