import type { BatchStreamRequest } from '@floe-rl/core/schema';
import type { BatchRowTotals, BatchStreamRow, StoreTables } from '../../store/index.ts';
import type { Transaction } from '../transaction.ts';
import { computedRow, isEndless } from './computed-rows.ts';
import { planEpoch } from './curriculum.ts';
import type { EpochPlans } from './epoch-plans.ts';
import type { RowFields } from './task-template.ts';

/** The row to sample next. */
export type NextRow = {
  readonly rowIndex: number;
  readonly fields: RowFields;
  readonly epoch: number;
  /** Number of groups of this visit of the row that failed because of the infrastructure. A visit is one turn of the row in an epoch. */
  readonly tries: number;
};

/** The place of a stream in its rows: the fields of the stream that {@link nextRow} advances. */
export type Position = Pick<BatchStreamRow, 'epoch' | 'position'>;

/** Returns the number of passes over the rows; `null` for no limit. */
function epochLimit({ purpose, order, source }: BatchStreamRequest): number | null {
  if (isEndless(source)) return null;
  return purpose === 'evaluate' ? 1 : order.epochs;
}

/**
 * Returns the next row of a stream with the position after it. Rows of groups that must be started once more come first, and then the rows of
 * the epoch. `row` is `null` when there is none at present. The caller must hold the stream's lock, and store the position.
 */
export async function nextRow(
  { tables, context }: Transaction,
  stream: BatchStreamRow,
  request: BatchStreamRequest,
): Promise<{ readonly row: NextRow | null; readonly position: Position }> {
  const { batches } = tables;
  const { batch_id: batchId } = stream;
  const repeated = await batches.groupToRepeat(batchId);
  if (repeated !== undefined) {
    await batches.updateGroup(batchId, repeated.group_no, { repeat: 0 });
    const { row_index: rowIndex, epoch, tries } = repeated;
    const fields = await fieldsOf(tables, request, batchId, rowIndex);
    // A group that became too old did not fail, so it does not count as a try of its row.
    const tried = repeated.state === 'rejected' ? tries + 1 : tries;
    return { row: { rowIndex, fields: fields ?? {}, epoch, tries: tried }, position: stream };
  }
  const limit = epochLimit(request);
  let { epoch, position } = stream;
  // At most two passes: the rest of this epoch, and the beginning of the next one.
  for (let passes = 0; passes < 2; ) {
    if (limit !== null && epoch >= limit) break;
    const plan = await planOf(tables, stream, request, { epoch, position }, context.epochPlans);
    const length = isEndless(request.source) ? Number.POSITIVE_INFINITY : (plan?.length ?? stream.row_count);
    if (length === 0) break;
    while (position < length) {
      const rowIndex = plan?.[position] ?? position;
      position += 1;
      const fields = await fieldsOf(tables, request, batchId, rowIndex);
      if (fields !== null) return { row: { rowIndex, fields, epoch, tries: 0 }, position: { epoch, position } };
    }
    if (stream.rows_complete === 0) break;
    epoch += 1;
    position = 0;
    passes += 1;
  }
  return { row: null, position: { epoch, position } };
}

/** Returns the fields of a row; `null` for a row that is not sampled, because it does not fit the template or is retired. */
async function fieldsOf(
  tables: StoreTables,
  { source }: BatchStreamRequest,
  batchId: string,
  rowIndex: number,
): Promise<RowFields | null> {
  const computed = computedRow(source, rowIndex);
  if (computed !== null) return computed;
  const row = await tables.batches.row(batchId, rowIndex);
  if (row === undefined || row.problem !== null || row.retired === 1) return null;
  return JSON.parse(row.fields) as RowFields;
}

/**
 * Returns the planned rows of an epoch. The plan is made and stored when the epoch begins. Returns `undefined` for evaluations, for endless
 * sources, and while the source may still have further rows; rows are then taken in their order.
 */
async function planOf(
  tables: StoreTables,
  stream: BatchStreamRow,
  { order, accept, purpose, source }: BatchStreamRequest,
  { epoch, position }: Position,
  plans: EpochPlans,
): Promise<readonly number[] | undefined> {
  if (isEndless(source) || purpose === 'evaluate') return undefined;
  const { batch_id: batchId, rows_complete: isComplete } = stream;
  const cached = plans.get(planKey(stream, epoch));
  if (cached !== undefined) return cached;
  const stored = await tables.batches.plan(batchId, epoch);
  if (stored !== undefined) return JSON.parse(stored) as number[];
  if (position > 0 || isComplete === 0) return undefined;
  const rows = await tables.batches.histories(batchId);
  const histories = rows.map(({ row_index, last_epoch, mean_reward, last_result }) => ({
    rowIndex: row_index,
    lastEpoch: last_epoch,
    meanReward: mean_reward,
    lastResult: last_result,
  }));
  const plan = planEpoch(histories, epoch, order, accept.resolved_reward);
  await tables.batches.putPlan(batchId, epoch, JSON.stringify(plan));
  return plan;
}

/**
 * Returns the key of a cached plan. It contains the stream's time of creation, because the id of a removed stream may be used for another
 * stream.
 */
function planKey({ batch_id: batchId, created_at: createdAt }: BatchStreamRow, epoch: number): string {
  return `${batchId}/${createdAt}/${epoch}`;
}

/**
 * Caches the stored plan of a stream's epoch. It must be called outside transactions that write. A plan that is rolled back must not be
 * cached, because another server might store a different plan.
 */
export async function rememberPlan(tables: StoreTables, stream: BatchStreamRow, plans: EpochPlans): Promise<void> {
  const key = planKey(stream, stream.epoch);
  if (plans.has(key)) return;
  const stored = await tables.batches.plan(stream.batch_id, stream.epoch);
  if (stored !== undefined) plans.set(key, JSON.parse(stored) as number[]);
}

/** Whether a stream may have a row to sample. When this is false, the stream's last epoch has ended, and no group must be started once more. */
export async function mayHaveRows(
  tables: StoreTables,
  stream: BatchStreamRow,
  request: BatchStreamRequest,
): Promise<boolean> {
  const limit = epochLimit(request);
  if (limit === null || stream.epoch < limit) return true;
  return (await tables.batches.groupToRepeat(stream.batch_id)) !== undefined;
}

/** The facts that determine whether all rows of a stream were sampled, in one state of the store. */
export type SamplingState = {
  /** Number of groups that run. */
  readonly running: number;
  /** Whether the row of a group must be started once more. */
  readonly hasRepeats: boolean;
  readonly unsampledRows: BatchRowTotals;
};

/** Whether all rows of a stream were sampled and none of its groups runs, so that no further group becomes ready. */
export function isSampled(
  stream: BatchStreamRow,
  request: BatchStreamRequest,
  { running, hasRepeats, unsampledRows }: SamplingState,
): boolean {
  if (stream.rows_complete === 0 || running > 0 || hasRepeats) return false;
  const limit = epochLimit(request);
  const isLastEpoch = limit !== null && stream.epoch >= limit;
  return isLastEpoch || unsampledRows.invalid + unsampledRows.retired >= stream.row_count;
}
