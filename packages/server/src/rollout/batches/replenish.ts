import { FloeError } from '@floe-rl/core';
import type { BatchStreamRequest } from '@floe-rl/core/schema';
import type { BatchStreamRow, StoreTables } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { checkRequest, digestOf, insertTask } from '../tasks/submit.ts';
import { runTransaction, type Transaction } from '../transaction.ts';
import { postponeWhileUnavailable } from '../watched-store.ts';
import { startableGroups } from './admission.ts';
import { waitedSize } from './batch-decision.ts';
import { isEndless } from './computed-rows.ts';
import type { RowGenerators } from './generator.ts';
import { mayHaveRows, type NextRow, nextRow, rememberPlan } from './next-row.ts';
import { storedMessage, streamRequest } from './stream-request.ts';
import { statedSamples, taskOfRow } from './task-template.ts';

/** Interval in milliseconds at which streams are checked for groups to start, even when no event wakes the loop. */
const POLL_INTERVAL_MS = 1_000;
/** Maximum number of streams that run at the same time. When there are more, the oldest streams wait. */
const MAX_STREAMS = 1_000;
/** Maximum number of groups that one transaction starts, so that other transactions do not wait for long. */
const MAX_STARTS = 8;
/** Number of started groups after which their changes are summed. Counting groups then reads a few hundred changes at most. */
const GROUPS_PER_FOLD = 64;

/** Starts groups of all running streams whenever the queue needs some, until the server closes. */
export async function runBatches(context: RolloutContext, generators: RowGenerators): Promise<void> {
  while (!context.closing.aborted) {
    await context.wakeups.poll('batches', POLL_INTERVAL_MS, context.closing, () =>
      postponeWhileUnavailable(context.log, 'batch streams wait', async () => {
        await replenishAll(context, generators);
        return undefined;
      }),
    );
  }
  await generators.close();
}

/** Starts the groups that all running streams may start now. Several servers on one store may do so concurrently. */
export async function replenishAll(context: RolloutContext, generators: RowGenerators): Promise<void> {
  const streams = await context.store.read((tables) =>
    tables.batches.streams({ status: 'running', limit: MAX_STREAMS }),
  );
  for (const stream of streams.reverse()) {
    if (context.closing.aborted) return;
    generators.request(stream);
    while (await replenish(context, stream.batch_id)) if (context.closing.aborted) return;
  }
}

/**
 * Starts groups of one stream while its queue is short and its bounds allow more. One call starts only a few groups, and resolves with whether
 * the queue may need more. The queue is refilled when it has fewer sessions than one group. Nodes then never wait, and groups do not become
 * old in the queue.
 */
async function replenish(context: RolloutContext, batchId: string): Promise<boolean> {
  const needsGroups = await context.store.read(async (tables) => {
    const stream = await tables.batches.stream(batchId);
    if (stream === undefined || stream.status === 'ended') return false;
    const request = streamRequest(stream);
    if ((await tables.batches.queuedSessions(batchId)) >= statedSamples(request)) return false;
    if ((await startable(tables, stream, request)) === 0) return false;
    if (!(await mayHaveRows(tables, stream, request))) return false;
    await rememberPlan(tables, stream, context.epochPlans);
    return true;
  });
  if (!needsGroups) return false;
  return runTransaction(context, async (transaction) => {
    const { batches } = transaction.tables;
    const locked = await batches.lockStream(batchId);
    if (locked === undefined || locked.status === 'ended') return false;
    let stream: BatchStreamRow = locked;
    const request = streamRequest(stream);
    const isComputed = isEndless(request.source);
    const allowed = await startable(transaction.tables, stream, request);
    let queued = await batches.queuedSessions(batchId);
    for (let starts = 0; starts < Math.min(allowed, MAX_STARTS) && queued < statedSamples(request); starts++) {
      const { row, position } = await nextRow(transaction, stream, request);
      const { epoch, position: index } = position;
      if (row === null) {
        await batches.updateStream(batchId, { epoch, position: index });
        transaction.wake(`batch:${batchId}`);
        return false;
      }
      const { sessions, refusal } = await startGroup(transaction, stream, request, row);
      const groupCount: number = stream.group_count + 1;
      const advanced = { epoch, position: index, group_count: groupCount };
      const changed = isComputed ? { ...advanced, source_error: refusal } : advanced;
      await batches.updateStream(batchId, changed);
      stream = { ...stream, ...changed };
      if (groupCount % GROUPS_PER_FOLD === 0) await batches.foldChanges(batchId);
      // All rows of an endless source might be refused, so the next row is tried only at the next poll.
      if (isComputed && refusal !== null) return false;
      queued += sessions;
    }
    return queued < statedSamples(request) && allowed > MAX_STARTS;
  });
}

async function startable(tables: StoreTables, stream: BatchStreamRow, request: BatchStreamRequest): Promise<number> {
  // An evaluation is sampled as fast as possible, since its groups cannot become too old.
  if (request.purpose === 'evaluate') return MAX_STARTS + 1;
  const countsGroups = request.batch_unit === 'group';
  // Running groups are counted first. A group that another server ends between the two statements is then counted twice rather than missed.
  const running = await tables.batches.sizeOf(stream.batch_id, 'running');
  const ready = await tables.batches.sizeOf(stream.batch_id, 'ready');
  return startableGroups({
    requested: waitedSize(stream),
    ready: countsGroups ? ready.groups : ready.resolved,
    running: running.groups,
    batchSize: request.batch_size,
    perGroup: countsGroups ? 1 : statedSamples(request),
    maxStaleness: request.max_staleness,
    oversampling: request.oversampling,
  });
}

/**
 * The result of starting a group. A started group has its number of sessions. A refused group has no sessions and the reason why its task was
 * refused.
 */
type StartedGroup = { readonly sessions: number; readonly refusal: string | null };

/**
 * Starts the group of a row in the transaction that advances the stream, so that no row is skipped or sampled twice. A task that is refused
 * now, for instance because no node has enough memory, makes its row invalid.
 */
async function startGroup(
  transaction: Transaction,
  stream: BatchStreamRow,
  request: BatchStreamRequest,
  { rowIndex, fields, epoch, tries }: NextRow,
): Promise<StartedGroup> {
  const { context, tables } = transaction;
  const { batch_id: batchId, group_count: groupNo } = stream;
  const origin = { batch_id: batchId, group: groupNo, row_index: rowIndex, epoch };
  const taskId = context.newId('task');
  try {
    const task = taskOfRow(request, fields, rowIndex);
    await checkRequest(context, task);
    const traced = { ...task, policy_version: stream.policy_version, metadata: { ...task.metadata, batch: origin } };
    await insertTask(transaction, taskId, traced, digestOf(traced));
    await tables.batches.addGroup({
      batch_id: batchId,
      group_no: groupNo,
      task_id: taskId,
      row_index: rowIndex,
      epoch,
      state: 'running',
      reason: null,
      policy_step: stream.policy_step,
      batch_no: null,
      repeat: 0,
      tries,
      usable: 0,
      resolved: 0,
      staleness: null,
      mean_reward: null,
      sessions: task.num_samples,
      sampled_tokens: 0,
    });
    return { sessions: task.num_samples, refusal: null };
  } catch (thrown) {
    if (!FloeError.is(thrown) || thrown.status >= 500) throw thrown;
    const refusal = storedMessage(thrown.message);
    await tables.batches.updateRow(batchId, rowIndex, { problem: refusal });
    return { sessions: 0, refusal };
  }
}
