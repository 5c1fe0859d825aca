import { FloeError } from '../../core/errors.ts';
import type { ConsumerRow, ResultWithSummary, StoreTables } from '../../store/index.ts';
import { change, type RolloutContext } from '../context.ts';

export type ResultsRequest = {
  /** The reader has handled everything up to this cursor. Absent: from where the consumer was, else from the first. */
  readonly after?: number | undefined;
  readonly limit: number;
  readonly waitMs: number;
  readonly trainer?: string | undefined;
  readonly consumer?: string | undefined;
  /** Only looks: nothing counts as read. */
  readonly peek: boolean;
  /** Aborts when nobody waits for the answer any more. */
  readonly gone: AbortSignal;
};

export type ResultsRead = { readonly rows: readonly ResultWithSummary[]; readonly next: number };

type Position = { readonly after: number; readonly trainer: string | null };

/**
 * Finished sessions after a cursor. That a reader asks for what is after a cursor says that it has what is up to it: this is
 * stored, durably and for all servers, before anything is answered. Throws `schema_violation` for a cursor that was never
 * given out, and `conflict` for a consumer that reads the results of another trainer.
 */
export async function readResults(context: RolloutContext, request: ResultsRequest): Promise<ResultsRead> {
  const { after, trainer } = await acknowledge(context, request);
  const found = await context.wakeups.poll('results', request.waitMs, request.gone, async () => {
    const rows = await context.store.read((tables) => tables.results.page(after, request.limit, trainer));
    return rows.length > 0 ? rows : undefined;
  });
  const rows = found ?? [];
  return { rows, next: rows.at(-1)?.cursor ?? after };
}

async function acknowledge(context: RolloutContext, request: ResultsRequest): Promise<Position> {
  const found = await context.store.read(async (tables) => {
    const consumer = request.consumer === undefined ? undefined : await tables.results.consumer(request.consumer);
    const position = positionOf(request, consumer);
    await refuseUnknownCursor(tables, position.after, consumer);
    return { position, consumer };
  });
  const { position, consumer } = found;
  const isNews = request.consumer === undefined ? position.after > 0 : position.after > (consumer?.cursor ?? -1);
  if (request.peek || !isNews) return position;
  return change(context, async (tables, effects) => {
    let { trainer } = position;
    if (request.consumer !== undefined) {
      const read = { consumer: request.consumer, trainer, cursor: position.after };
      // Another reader may have made the consumer meanwhile, for another trainer.
      trainer = positionOf(request, await tables.results.putConsumer(read)).trainer;
    }
    if (position.after > 0) await tables.results.collect(trainer, position.after);
    // Collected results may let sessions of this trainer go out again.
    effects.topics.add('queue');
    return { ...position, trainer };
  });
}

function positionOf(request: ResultsRequest, consumer: ConsumerRow | undefined): Position {
  const { trainer } = request;
  if (consumer === undefined) return { after: request.after ?? 0, trainer: trainer ?? null };
  if (trainer !== undefined && trainer !== consumer.trainer) {
    const whose = consumer.trainer === null ? 'all trainers' : `trainer ${consumer.trainer}`;
    throw new FloeError('conflict', `consumer ${consumer.consumer} reads the results of ${whose}, not of ${trainer}`, {
      consumer: consumer.consumer,
      trainer: consumer.trainer,
    });
  }
  return { after: request.after ?? consumer.cursor, trainer: consumer.trainer };
}

/** A cursor that this store never gave out belongs to another one; waiting for it would wait for ever. */
async function refuseUnknownCursor(
  tables: StoreTables,
  after: number,
  consumer: ConsumerRow | undefined,
): Promise<void> {
  if (after <= (consumer?.cursor ?? 0)) return;
  // That of a result that is kept no longer was given out too.
  const newest = await tables.results.lastCursor();
  if (after <= newest) return;
  const message = `is ${after}, but the newest cursor of this server is ${newest}`;
  throw new FloeError('schema_violation', `query: after: ${message}`, { issues: [{ path: 'after', message }] });
}
