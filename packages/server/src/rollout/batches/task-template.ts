import { FloeError, fillTemplate, parseAs } from '@floe-rl/core';
import { type BatchStreamRequest, type TaskRequest, templateTaskSchema } from '@floe-rl/core/schema';
import type { RolloutContext } from '../context.ts';
import { checkRequest } from '../tasks/submit.ts';

/** A row of a data set: a JSON object. */
export type RowFields = Readonly<Record<string, unknown>>;

/** The dispatch priority of evaluations, which is the highest. */
const EVALUATION_PRIORITY = 100;
/** Difference between the sampling seeds of consecutive rows of an evaluation. Sample i of a row uses the seed of the row plus i. */
const SEEDS_PER_ROW = 100_000;
const MAX_SEED = 2 ** 31 - 1;

/**
 * Returns the task of a row: the stream's template with the fields of the row. Throws `schema_violation` for a placeholder whose field the row
 * does not have, and for a task that does not fit its schema. Throws `body_too_large` for a task that is too large to be submitted.
 */
export function taskOfRow({ task, purpose, order }: BatchStreamRequest, row: RowFields, rowIndex: number): TaskRequest {
  const filled = parseAs(templateTaskSchema, fillTemplate(task, 'row', row), 'task');
  const request: TaskRequest = { ...filled, callback_url: null };
  if (purpose === 'train') return request;
  const seed = request.sampling.seed ?? (order.seed + rowIndex * SEEDS_PER_ROW) % MAX_SEED;
  return { ...request, dispatch_priority: EVALUATION_PRIORITY, sampling: { ...request.sampling, seed } };
}

/**
 * Returns the reason why a row cannot be sampled with the stream's template; `null` when it can. The harness, builder and evaluator that the
 * task names are checked too.
 */
export async function rowProblem(
  context: RolloutContext,
  request: BatchStreamRequest,
  row: RowFields,
  rowIndex: number,
): Promise<FloeError | null> {
  try {
    await checkRequest(context, taskOfRow(request, row, rowIndex));
    return null;
  } catch (thrown) {
    if (FloeError.is(thrown) && thrown.status < 500) return thrown;
    throw thrown;
  }
}

/** Returns the number of samples that the template states; 1 when it takes the number from the row. */
export function statedSamples({ task }: BatchStreamRequest): number {
  const { num_samples: samples } = task;
  return typeof samples === 'number' && samples >= 1 ? samples : 1;
}
