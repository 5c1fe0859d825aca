import { FloeError, fillTemplate, parseAs } from '@floe-rl/core';
import type { Row } from '@floe-rl/core/rows';
import { type SessionResult, type TaskRequest, taskRequestSchema } from '@floe-rl/core/schema';
import type { SampleId } from './journal.ts';

/** Key in a task's metadata for the run, row and sample to which it belongs. */
const METADATA_KEY = 'floe_generate';

/** Fields of a task that a run sets itself, with the option to use instead. */
const RESERVED: Readonly<Record<string, string>> = {
  task_id: 'ids are made of run, row and sample',
  idempotency_key: 'keys are made of run, row and sample',
  num_samples: 'use --samples',
  early_stop_min_usable_sessions: 'use --keep',
  refill: 'use --samples with --keep',
};

/**
 * Added to the seed for the repetition of a sample, so that the repetition differs from the first generation. It is less than 100,000, the
 * difference between the seeds of two model calls.
 */
const RETRY_SEED_STEP = 50_000;

export type TaskTemplate = Readonly<Record<string, unknown>>;

/** Throws `bad_request` for a template that sets a field which the run sets, or that does not depend on the row. */
export function checkTemplate(template: TaskTemplate, name: string): void {
  for (const [field, instead] of Object.entries(RESERVED)) {
    if (template[field] == null) continue;
    throw new FloeError('bad_request', `${name}: ${field} must not be set here: ${instead}`, { field });
  }
  if (typeof template.trainer === 'string' && template.trainer.includes('{{')) {
    throw new FloeError('bad_request', `${name}: trainer must be the same for all rows`, { field: 'trainer' });
  }
  if (/\{\{\s*row[\s.}]/.test(JSON.stringify(template))) return;
  throw new FloeError(
    'bad_request',
    `${name} has no placeholder such as {{row.problem}}, so all rows would be the same`,
  );
}

/** The run and shard to which tasks belong, and their default trainer. */
export type TaskOwner = { readonly run: string; readonly trainer: string };

/**
 * Makes the task of one sample of a row. Its id depends only on run and sample, so a task that is submitted twice runs once. Throws
 * `schema_violation` with the place of the row for a row that does not fit the template.
 */
export function sampleTask(template: TaskTemplate, row: Row, owner: TaskOwner, id: SampleId): TaskRequest {
  const task = rowTask(template, row);
  const { seed } = task.sampling;
  const taskId = taskIdOf(owner.run, id);
  return {
    ...task,
    task_id: taskId,
    idempotency_key: taskId,
    trainer: template.trainer === undefined ? owner.trainer : task.trainer,
    sampling: { ...task.sampling, seed: seed === null ? null : seed + id.sample + id.retry * RETRY_SEED_STEP },
    metadata: { ...task.metadata, [METADATA_KEY]: { run: owner.run, ...id } },
  };
}

/** Returns the id of the task of one sample, which is also its idempotency key. */
export function taskIdOf(run: string, { row, sample, retry }: SampleId): string {
  return `${run}-${row}-${sample}${retry === 0 ? '' : `-${retry}`}`;
}

/** Makes the task of a row without the fields that differ between samples. Throws as {@link sampleTask} does. */
export function rowTask(template: TaskTemplate, row: Row): TaskRequest {
  try {
    return parseAs(taskRequestSchema, fillTemplate(template, 'row', row.fields), 'the task');
  } catch (thrown) {
    if (!FloeError.is(thrown)) throw thrown;
    throw new FloeError(thrown.code, `${row.where}: ${thrown.message}`, { ...thrown.details, row: row.where }, thrown);
  }
}

/** Returns the sample of the run to which a result belongs; `null` for a result of another run. */
export function sampleOf(run: string, { metadata }: Pick<SessionResult, 'metadata'>): SampleId | null {
  const mark = metadata[METADATA_KEY] as (SampleId & { readonly run: string }) | undefined;
  return mark?.run === run ? { row: mark.row, sample: mark.sample, retry: mark.retry } : null;
}
