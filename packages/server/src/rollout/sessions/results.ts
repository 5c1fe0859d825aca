import { FloeError } from '@floe-rl/core';
import type { ConsumerRow, ResultWithSummary, StoreTables } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { queryError } from '../field-errors.ts';
import { runTransaction } from '../transaction.ts';

export type ResultsRequest = {
  /** The cursor of the last result that the reader has handled. Default: the consumer's stored cursor, or else 0. */
  readonly after?: number | undefined;
  readonly limit: number;
  /** Longest time in milliseconds to wait for a result when none is stored. */
  readonly waitMs: number;
  /**
   * The trainer whose results are read. By default, the trainer that `consumer` named in its first request; without a `consumer`, the results
   * of all trainers are read.
   */
  readonly trainer?: string | undefined;
  readonly consumer?: string | undefined;
  /** Whether to read without side effects: no result then counts as collected, and no cursor is stored. */
  readonly peek: boolean;
  /** Aborted when the client has closed the connection. */
  readonly disconnected: AbortSignal;
};

/** A page of results. `next` is the cursor to send in the request for the next page. */
export type ResultsPage = { readonly rows: readonly ResultWithSummary[]; readonly next: number };

type Position = { readonly after: number; readonly trainer: string | null };

/**
 * Returns the results after a cursor. A request for the results after a cursor acknowledges all results up to that cursor: the
 * acknowledgement is stored, durably and for all servers, before the reply. Throws `schema_violation` for a cursor that was never
 * assigned, and `conflict` for a consumer that reads the results of another trainer.
 */
export async function readResults(context: RolloutContext, request: ResultsRequest): Promise<ResultsPage> {
  const { after, trainer } = await acknowledge(context, request);
  const page = await context.wakeups.poll('results', request.waitMs, request.disconnected, async () => {
    const rows = await context.store.read((tables) => tables.results.page(after, request.limit, trainer));
    return rows.length > 0 ? rows : undefined;
  });
  const rows = page ?? [];
  return { rows, next: rows.at(-1)?.cursor ?? after };
}

async function acknowledge(context: RolloutContext, request: ResultsRequest): Promise<Position> {
  const { position, consumer } = await context.store.read(async (tables) => {
    const known = request.consumer === undefined ? undefined : await tables.results.consumer(request.consumer);
    const start = positionOf(request, known);
    await refuseUnknownCursor(tables, start.after, known);
    return { position: start, consumer: known };
  });
  const isNew = request.consumer === undefined ? position.after > 0 : position.after > (consumer?.cursor ?? -1);
  if (request.peek || !isNew) return position;
  return runTransaction(context, async (transaction) => {
    const { tables } = transaction;
    let { trainer } = position;
    if (request.consumer !== undefined) {
      const read = { consumer: request.consumer, trainer, cursor: position.after };
      // A concurrent request may have created this consumer with another trainer, so the trainer is checked a second time.
      trainer = positionOf(request, await tables.results.putConsumer(read)).trainer;
    }
    if (position.after > 0) await tables.results.collect(trainer, position.after);
    // While a trainer has too many uncollected results, nodes get no sessions of it. These results now count as collected, so waiting lease
    // requests are woken.
    transaction.wake('queue');
    return { ...position, trainer };
  });
}

function positionOf(request: ResultsRequest, consumer: ConsumerRow | undefined): Position {
  const { trainer } = request;
  if (consumer === undefined) return { after: request.after ?? 0, trainer: trainer ?? null };
  if (trainer !== undefined && trainer !== consumer.trainer) {
    const scope = consumer.trainer === null ? 'all trainers' : `trainer ${consumer.trainer}`;
    throw new FloeError('conflict', `consumer ${consumer.consumer} reads the results of ${scope}, not of ${trainer}`, {
      consumer: consumer.consumer,
      trainer: consumer.trainer,
    });
  }
  return { after: request.after ?? consumer.cursor, trainer: consumer.trainer };
}

/**
 * Throws `schema_violation` for a cursor that this store never assigned. Such a cursor comes from another store, and waiting for results
 * after it would never end.
 */
async function refuseUnknownCursor(
  tables: StoreTables,
  after: number,
  consumer: ConsumerRow | undefined,
): Promise<void> {
  if (after <= (consumer?.cursor ?? 0)) return;
  // `lastCursor` returns the highest cursor ever assigned, even if the result with that cursor has been removed since.
  const last = await tables.results.lastCursor();
  if (after <= last) return;
  const message = `is ${after}, but the newest cursor of this server is ${last}`;
  throw queryError('after', message);
}
