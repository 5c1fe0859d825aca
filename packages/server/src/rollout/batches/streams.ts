import { createHash } from 'node:crypto';
import { canonicalJson, FloeError, fieldError, isoNow, jsonSize, requireTaskSize, sharedTurns } from '@floe-rl/core';
import { allRows, firstRows } from '@floe-rl/core/rows';
import {
  type BatchRows,
  type BatchRowsReply,
  type BatchStreamRequest,
  type BatchStreamView,
  templateTaskSchema,
} from '@floe-rl/core/schema';
import type { BatchDataRow, BatchStreamRow, StoreTables } from '../../store/index.ts';
import { checkOutboundUrl } from '../callbacks/address.ts';
import type { RolloutContext } from '../context.ts';
import { bodyError } from '../field-errors.ts';
import { runTransaction } from '../transaction.ts';
import { cancelRunning } from './cancel-groups.ts';
import { computedRow, isEndless } from './computed-rows.ts';
import { rowsOfFile } from './row-files.ts';
import { storedMessage, streamRequest, unknownStream } from './stream-request.ts';
import { type RowFields, rowProblem } from './task-template.ts';
import { MAX_LISTED_PROBLEMS, streamView } from './views.ts';

/**
 * Time in milliseconds for which rows are checked before other work of the server gets its turn. One check takes about 0.1 ms. For the largest
 * task it takes some tens of milliseconds.
 */
const CHECK_MS_PER_TURN = 5;

/**
 * Creates a stream. Its groups start immediately. When the same request is repeated with the same `batch_id`, returns the existing stream; a
 * different request with this id throws `conflict`. Throws `schema_violation` when the template does not fit any of the rows.
 */
export async function createStream(context: RolloutContext, request: BatchStreamRequest): Promise<BatchStreamView> {
  checkStream(context, request);
  const digest = createHash('sha256').update(canonicalJson(request)).digest('hex');
  const batchId = request.batch_id ?? context.newId('batch');
  const known = await context.store.read((tables) => tables.batches.stream(batchId));
  if (known === undefined) {
    const { rows, firstProblem } = await dataRows(context, batchId, request, sourceRows(context, request));
    refuseAllInvalid(rows, firstProblem, request);
    if (isEndless(request.source)) await checkEndless(context, request);
    await runTransaction(context, async (transaction) => {
      const stream = newStream(context, { batchId, request, digest, rowCount: rows.length });
      if (!(await transaction.tables.batches.addStream(stream))) return;
      await transaction.tables.batches.addRows(rows);
      transaction.wake('batches');
    });
  }
  const stored = await context.store.read((tables) => tables.batches.stream(batchId));
  if (stored === undefined) throw unknownStream(batchId);
  if (stored.digest !== digest) {
    throw new FloeError('conflict', `the batch stream ${batchId} was created with a different body`, {
      batch_id: batchId,
    });
  }
  return { ...(await streamView(context, stored)), duplicate: known !== undefined };
}

/** Throws when a field of a new stream contradicts another one or the server's configuration. */
function checkStream({ config, batchFilters }: RolloutContext, request: BatchStreamRequest): void {
  const { source, accept, order, task, purpose } = request;
  if (source.kind === 'generator') checkOutboundUrl(config, source.url, 'source.url');
  if (isEndless(source) && order.kind !== 'sequential')
    throw bodyError('order.kind', 'an endless source is sequential');
  if (isEndless(source) && purpose === 'evaluate')
    throw bodyError('source.kind', 'an evaluation needs a finite source');
  if (accept.zero_variance === 'drop' && (task.evaluator ?? null) === null) {
    throw bodyError('accept.zero_variance', 'is drop, but the task has no evaluator, so its groups have no rewards');
  }
  const samples = task.num_samples ?? 1;
  if (typeof samples === 'number') {
    const most = `is more than the ${samples} samples of a group, so no group would ever be effective`;
    if ((accept.min_usable ?? 0) > samples) throw bodyError('accept.min_usable', most);
    if (accept.min_resolved > samples) throw bodyError('accept.min_resolved', most);
    if (
      samples === 1 &&
      accept.zero_variance === 'drop' &&
      accept.all_right !== 'keep' &&
      accept.all_wrong !== 'keep'
    ) {
      throw bodyError('accept.zero_variance', 'is drop, but a group has one sample, so its rewards are always equal');
    }
  }
  if (order.kind === 'adaptive' && accept.resolved_reward <= 0) {
    throw bodyError('order.kind', 'adaptive needs a resolved_reward above 0');
  }
  if (typeof task.trainer === 'string' && task.trainer.includes('{{')) {
    throw bodyError('task.trainer', 'must be the same for all rows, since a stream belongs to one trainer');
  }
  const { filter } = accept;
  if (filter !== null && !batchFilters.has(filter)) {
    const names = [...batchFilters.keys()].join(', ') || 'none';
    throw bodyError('accept.filter', `${filter} is not one of this server's batch_filters, which are: ${names}`);
  }
  requireTaskSize(jsonSize(task), 'body: task: the template', 'task');
  for (const field of Object.keys(task)) {
    if (!Object.hasOwn(templateTaskSchema.shape, field)) {
      throw bodyError(`task.${field}`, 'is not a field of a task that a stream may set');
    }
  }
}

/** Returns the rows that a stream has when it is created. */
function sourceRows(
  { config }: RolloutContext,
  { source }: BatchStreamRequest,
): Iterable<RowFields> | AsyncIterable<RowFields> {
  if (source.kind === 'rows') return source.rows;
  if (source.kind === 'environments') return allRows(source);
  return source.kind === 'file' ? rowsOfFile(config.dataset_dir, source.path) : [];
}

/** Rows that were checked against a template. `firstProblem` is the reason why the first unfit row does not fit; `null` when all rows fit. */
type CheckedRows = { readonly rows: BatchDataRow[]; readonly firstProblem: FloeError | null };

/** Checks rows against the template, and numbers them from 0. */
async function dataRows(
  context: RolloutContext,
  batchId: string,
  request: BatchStreamRequest,
  given: Iterable<RowFields> | AsyncIterable<RowFields>,
): Promise<CheckedRows> {
  const rows: BatchDataRow[] = [];
  let firstProblem: FloeError | null = null;
  const takeTurns = sharedTurns(context.clock, CHECK_MS_PER_TURN);
  for await (const row of given) {
    const rowIndex = rows.length;
    await takeTurns();
    const problem = await rowProblem(context, request, row, rowIndex);
    firstProblem ??= problem;
    rows.push({
      batch_id: batchId,
      row_index: rowIndex,
      fields: JSON.stringify(row),
      problem: problem === null ? null : storedMessage(problem.message),
      last_epoch: null,
      mean_reward: null,
      last_result: null,
      rejections: 0,
      retired: 0,
    });
  }
  return { rows, firstProblem };
}

function refuseAllInvalid(
  rows: readonly BatchDataRow[],
  firstProblem: FloeError | null,
  { source }: BatchStreamRequest,
): void {
  const [first] = rows;
  if (first === undefined && (source.kind === 'file' || (source.kind === 'rows' && !source.open))) {
    const path = source.kind === 'file' ? 'source.path' : 'source.rows';
    throw bodyError(path, 'has no rows');
  }
  if (firstProblem === null || rows.some(({ problem }) => problem === null)) return;
  const message = `none of the ${rows.length} rows fits the template; the first, row 0: ${storedMessage(firstProblem.message)}`;
  throw refusedTemplate(firstProblem, 0, message);
}

/** Returns the error for a template that makes no task of a row. When the task is too large, the error keeps its code and details. */
function refusedTemplate({ code, details }: FloeError, rowIndex: number, message: string): FloeError {
  if (code !== 'body_too_large') return bodyError('task', message);
  return fieldError('task', message, { input: 'body', code, details: { ...details, row_index: rowIndex } });
}

/** Throws when the template does not fit the first row of an endless source, or the first row of each environment. */
async function checkEndless(context: RolloutContext, request: BatchStreamRequest): Promise<void> {
  const { source } = request;
  const takeTurns = sharedTurns(context.clock, CHECK_MS_PER_TURN);
  for (const rowIndex of source.kind === 'environments' ? firstRows(source) : [0]) {
    await takeTurns();
    const problem = await rowProblem(context, request, computedRow(source, rowIndex) ?? {}, rowIndex);
    if (problem === null) continue;
    const what = source.kind === 'environments' ? `row ${rowIndex} of its source` : 'the rows of an endless source';
    throw refusedTemplate(problem, rowIndex, `does not fit ${what}: ${storedMessage(problem.message)}`);
  }
}

function newStream(
  { clock }: RolloutContext,
  {
    batchId,
    request,
    digest,
    rowCount,
  }: { batchId: string; request: BatchStreamRequest; digest: string; rowCount: number },
): BatchStreamRow {
  const { source } = request;
  const stored = source.kind === 'rows' ? { ...request, source: { ...source, rows: [] } } : request;
  const isComplete =
    source.kind === 'file' ||
    (source.kind === 'environments' && source.episodes !== null) ||
    (source.kind === 'rows' && !source.open);
  return {
    batch_id: batchId,
    digest,
    request: JSON.stringify({ ...stored, batch_id: batchId }),
    trainer: typeof request.task.trainer === 'string' ? request.task.trainer : 'default',
    status: 'running',
    last_batch: 0,
    requested_batch: 0,
    acknowledged: 0,
    policy_version: null,
    policy_step: null,
    requested_size: 0,
    row_count: rowCount,
    rows_complete: isComplete ? 1 : 0,
    group_count: 0,
    epoch: 0,
    position: 0,
    source_error: null,
    source_retry_ms: 0,
    ended_ms: null,
    created_at: isoNow(clock),
  };
}

/**
 * Adds rows to a stream. Rows that do not fit the template are stored with the reason and are not sampled. With `after`, rows that the stream
 * has already are not added a second time.
 *
 * Throws `conflict` in four cases. `after` is more than the number of rows that the stream has. The stream has a different row at the place of
 * a given row. The source takes no rows. The source was completed.
 */
export async function addRows(context: RolloutContext, batchId: string, added: BatchRows): Promise<BatchRowsReply> {
  const stream = await context.store.read((tables) => tables.batches.stream(batchId));
  if (stream === undefined) throw unknownStream(batchId);
  const request = streamRequest(stream);
  if (request.source.kind !== 'rows' && request.source.kind !== 'generator') {
    throw new FloeError(
      'conflict',
      `the source of the batch stream ${batchId} is ${request.source.kind}, to which no rows can be added`,
    );
  }
  const { rows: checked } = await dataRows(context, batchId, request, added.rows);
  const { rowCount, rows } = await runTransaction(context, async (transaction) => {
    const { batches } = transaction.tables;
    const current = await batches.lockStream(batchId);
    if (current === undefined) throw unknownStream(batchId);
    const after = added.after ?? current.row_count;
    if (after > current.row_count) {
      throw new FloeError(
        'conflict',
        `after is ${after}, but the batch stream ${batchId} has only ${current.row_count} rows`,
      );
    }
    await checkRepeated(batches, batchId, checked, after);
    const fresh = checked
      .map((row, offset) => ({ ...row, row_index: after + offset }))
      .filter(({ row_index }) => row_index >= current.row_count);
    if (fresh.length > 0 && (current.rows_complete === 1 || current.status === 'ended')) {
      throw new FloeError('conflict', `the batch stream ${batchId} takes no further rows`);
    }
    await batches.addRows(fresh);
    const total = current.row_count + fresh.length;
    const isComplete = added.last || current.rows_complete === 1;
    await batches.updateStream(batchId, {
      row_count: total,
      rows_complete: isComplete ? 1 : 0,
      source_error: null,
      source_retry_ms: 0,
    });
    transaction.wake('batches');
    transaction.wake(`batch:${batchId}`);
    return { rowCount: total, rows: fresh };
  });
  const invalid = rows.flatMap(({ row_index, problem }) => (problem === null ? [] : [{ row_index, message: problem }]));
  return { row_count: rowCount, invalid: invalid.slice(0, MAX_LISTED_PROBLEMS) };
}

/**
 * Throws `conflict` when a given row differs from the stream's row at the same place. Otherwise, when two clients add rows after the same
 * number, the rows of one client would be lost.
 */
async function checkRepeated(
  batches: StoreTables['batches'],
  batchId: string,
  given: readonly BatchDataRow[],
  after: number,
): Promise<void> {
  const known = await batches.rowFields(batchId, after, after + given.length);
  for (const [offset, fields] of known.entries()) {
    const row = given[offset]?.fields ?? '';
    if (row === fields || canonicalJson(JSON.parse(row)) === canonicalJson(JSON.parse(fields))) continue;
    throw new FloeError(
      'conflict',
      `row ${after + offset} of the batch stream ${batchId} differs from the given row, so none was added; ` +
        'after must be the number of rows that the stream has',
      { batch_id: batchId, row_index: after + offset },
    );
  }
}

/** Ends a stream. No further group starts, running groups are cancelled, and `next` returns no further batch. May be called again. */
export async function endStream(context: RolloutContext, batchId: string): Promise<BatchStreamView> {
  await runTransaction(context, async (transaction) => {
    const { batches, results } = transaction.tables;
    const stream = await batches.lockStream(batchId);
    if (stream === undefined) throw unknownStream(batchId);
    if (stream.status === 'ended') return;
    await batches.updateStream(batchId, { status: 'ended', ended_ms: context.time.nowMs() });
    const running = await batches.groups(batchId, 'running', Number.MAX_SAFE_INTEGER);
    await cancelRunning(transaction, running, { state: 'cancelled', repeat: 0 });
    const ready = await batches.groups(batchId, 'ready', Number.MAX_SAFE_INTEGER);
    const readyTasks = ready.map((group) => group.task_id);
    await batches.updateGroups(readyTasks, { state: 'cancelled', repeat: 0 });
    await results.collectTasks(readyTasks);
    await results.collectBatches(batchId, stream.acknowledged, stream.last_batch);
    transaction.wake(`batch:${batchId}`);
    transaction.wake('queue');
  });
  return readStream(context, batchId);
}

/** Returns the state of a stream. Throws `not_found` for an unknown id. */
export async function readStream(context: RolloutContext, batchId: string): Promise<BatchStreamView> {
  const stream = await context.store.read((tables) => tables.batches.stream(batchId));
  if (stream === undefined) throw unknownStream(batchId);
  return streamView(context, stream);
}
