import { FloeError, fillTemplate, jsonSize, parseAs, requireTaskSize } from '@floe-rl/core';
import { type TaskRequest, taskRequestSchema } from '@floe-rl/core/schema';
import type { ProrlHandler, ProrlProcess } from './schema.ts';

/** Data source of an instance that does not name its source (`openhands/nvidia/async_server.py` at 40c1d8a). */
const DEFAULT_SOURCE = 'swebench';
/** Name of the template for data sources without a template of their own. */
const ANY_SOURCE = '*';
/** Key in a task's metadata for the fields that clients use to identify a result: `data_source`, `instance_id` and `trajectory_id`. */
export const METADATA_KEY = 'prorl';

/** Sampling parameters of floe by the names that ProRL Agent's clients use. */
const SAMPLING: Readonly<Record<string, string>> = {
  temperature: 'temperature',
  top_p: 'top_p',
  top_k: 'top_k',
  min_p: 'min_p',
  repetition_penalty: 'repetition_penalty',
  seed: 'seed',
  max_tokens: 'max_tokens',
  max_output_tokens: 'max_tokens',
  max_completion_tokens: 'max_tokens',
};
/**
 * Parameters that ProRL Agent's clients send and that floe ignores without a warning. The engine determines the model, its tokenizer and its
 * context length, and floe always records token ids.
 */
const KNOWN = ['model', 'api_key', 'custom_tokenizer', 'token_level_generation', 'max_model_len', 'max_iterations'];

/** A job as a floe task, and a warning for each parameter that has no effect. */
export type TranslatedJob = { readonly task: TaskRequest; readonly warnings: readonly string[] };

/**
 * Translates a job of ProRL Agent to a floe task. A job contains an instance (a problem to solve), which names its data source. `handlers`
 * contains a task template for each data source, or `*` for all others. The template is filled in with fields of the instance.
 *
 * Throws `bad_request` for a data source without a template, `schema_violation` when the filled-in template is not a valid task, and
 * `body_too_large` when the task is too large.
 */
export function translateJob(handlers: Readonly<Record<string, ProrlHandler>>, job: ProrlProcess): TranslatedJob {
  const { instance } = job;
  const source = typeof instance.data_source === 'string' ? instance.data_source : DEFAULT_SOURCE;
  const name = [source, ANY_SOURCE].find((key) => Object.hasOwn(handlers, key));
  const handler = name === undefined ? undefined : handlers[name];
  if (handler === undefined) {
    const known = Object.keys(handlers).join(', ') || 'none';
    const message = `there is no handler for data source ${source}; prorl_handlers of the server has ${known}`;
    throw new FloeError('bad_request', message, { data_source: source });
  }
  const template = fillTemplate(handler, 'instance', instance) as Record<string, unknown>;
  const { sampling, warnings } = samplingOf(job.sampling_params);
  const { max_iterations: maxTurns } = job.sampling_params;
  const fields = {
    ...template,
    num_samples: 1,
    trainer: 'prorl',
    builder: { strategy: 'per_request', config: {} },
    agent: { ...(template.agent as object), ...(maxTurns == null ? {} : { max_turns: maxTurns }) },
    sampling: { ...(template.sampling as object | undefined), ...sampling },
    metadata: { ...(template.metadata as object | undefined), [METADATA_KEY]: identityOf(instance, source) },
  };
  const subject = `the task for data source ${source}`;
  // The fields that the job adds to the filled template count too.
  requireTaskSize(jsonSize(fields), subject, 'instance');
  return { task: parseAs(taskRequestSchema, fields, subject), warnings };
}

function samplingOf(params: Record<string, unknown>) {
  const sampling: Record<string, unknown> = {};
  const warnings: string[] = [];
  for (const [key, value] of Object.entries(params)) {
    const name = Object.hasOwn(SAMPLING, key) ? SAMPLING[key] : undefined;
    if (value === null || KNOWN.includes(key)) continue;
    if (name === undefined) warnings.push(`sampling_params.${key}: has no effect in floe and is ignored`);
    else sampling[name] = key === 'top_k' && value === -1 ? 0 : value;
  }
  return { sampling, warnings };
}

function identityOf(
  { instance_id = null, trajectory_id = null }: Record<string, unknown>,
  data_source: string,
): object {
  return { data_source, instance_id, trajectory_id };
}
