import { parseAs } from '@floe-rl/core';
import { type TaskRequest, taskRequestSchema } from '@floe-rl/core/schema';
import { agentOf } from './agent.ts';
import { evaluatorOf } from './evaluator.ts';
import { present, RequestNotes, requireValid } from './notes.ts';
import { runtimeOf } from './runtime.ts';
import { type PolarTaskRequest, polarTaskRequestSchema } from './schema.ts';

/** Name of the trainer to which tasks of the Polar API belong. */
const POLAR_TRAINER = 'polar';
/** Key of a Polar task's metadata that seeds the samples of an evaluation: sample i uses this number plus i. */
const SEED_KEY = 'eval_sampling_seed_base';

/** A Polar request as a floe task, and a warning for each part of the request that has no effect. */
export type TranslatedTask = { readonly task: TaskRequest; readonly warnings: readonly string[] };

/**
 * Translates a Polar request. Throws `schema_violation` for an invalid field, and `unsupported` for a key with an effect that floe lacks.
 */
export function translateTask(request: PolarTaskRequest): TranslatedTask {
  const notes = new RequestNotes();
  notes.warnUnknown('', request, polarTaskRequestSchema.shape);
  const { agent, sampling } = agentOf(request.agent, notes);
  const seed = seedBaseOf(request.metadata);
  const agentTimeout = agentTimeoutOf(request.metadata);
  const { policy_version: version } = request.metadata;
  const fields = {
    instruction: request.instruction,
    num_samples: sampleCount(request, notes),
    trainer: POLAR_TRAINER,
    dispatch_priority: request.dispatch_priority,
    early_stop_min_usable_sessions: request.early_stop_min_usable_sessions ?? null,
    timeout_seconds: request.timeout_seconds,
    budgets: agentTimeout === null ? {} : { agent: agentTimeout },
    runtime: request.runtime == null ? null : runtimeOf(request.runtime, notes),
    agent,
    sampling: seed === null ? sampling : { ...sampling, seed },
    builder: builderOf(request.builder, notes),
    evaluator: request.evaluator == null ? null : evaluatorOf(request.evaluator, notes),
    callback_url: request.callback_url ?? null,
    policy_version: typeof version === 'string' || typeof version === 'number' ? String(version) : null,
    metadata: request.metadata,
  };
  return { task: parseAs(taskRequestSchema, fields, 'body'), warnings: notes.warnings };
}

function sampleCount({ num_samples, num_rollouts }: PolarTaskRequest, notes: RequestNotes): number {
  if (num_rollouts === undefined) return num_samples ?? 1;
  if (num_samples === undefined) notes.warn('num_rollouts', 'is the old name of num_samples and is used as such');
  else notes.warn('num_rollouts', 'is ignored, because num_samples is set');
  return num_samples ?? num_rollouts;
}

function builderOf(spec: PolarTaskRequest['builder'], notes: RequestNotes) {
  notes.warnUnknown('builder', spec, polarTaskRequestSchema.shape.builder.unwrap().shape);
  return { strategy: spec.strategy, config: present(spec.config) };
}

function agentTimeoutOf({ agent_timeout: value }: Record<string, unknown>): number | null {
  if (value === null || value === undefined) return null;
  const isValid = typeof value === 'number' && Number.isFinite(value) && value > 0;
  requireValid(isValid, 'metadata.agent_timeout', 'must be a number of seconds above 0');
  return value as number;
}

/** Returns the seed of sample 0; `null` when the task does not seed its samples. Polar also accepts a number that is written as text. */
export function seedBaseOf({ [SEED_KEY]: value }: Record<string, unknown>): number | null {
  if (value === null || value === undefined) return null;
  const seed = typeof value === 'string' && /^\d+$/.test(value) ? Number(value) : value;
  const isValid = typeof seed === 'number' && Number.isSafeInteger(Math.trunc(seed)) && seed >= 0;
  requireValid(isValid, `metadata.${SEED_KEY}`, 'must be a whole number from 0');
  return Math.trunc(seed as number);
}
