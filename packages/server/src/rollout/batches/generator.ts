import { asFloeError, FloeError, MIB, parseAs, parseJson } from '@floe-rl/core';
import { callHttp, type HttpAgent, httpAgent } from '@floe-rl/core/http';
import { batchRowsSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { BatchStreamRow } from '../../store/index.ts';
import { checkedLookup } from '../callbacks/address.ts';
import type { RolloutContext } from '../context.ts';
import { postponeWhileUnavailable } from '../watched-store.ts';
import { storedMessage, streamRequest } from './stream-request.ts';
import { addRows } from './streams.ts';

/** Number of rows in one request. Further rows are requested when fewer than this many are left. */
const PAGE_ROWS = 64;
const REPLY_TIMEOUT_MS = 30_000;
const REPLY_LIMIT_BYTES = 8 * MIB;
const MAX_REPLY_VALUES = 200_000;
/** Pause in milliseconds after a failed request. */
const RETRY_MS = 5_000;

const pageSchema = z.object({ rows: batchRowsSchema.shape.rows, done: z.boolean().default(false) });

/** Requests the rows of streams whose source is a generator, at most one request for each stream at a time. */
export class RowGenerators {
  private readonly context: RolloutContext;
  private readonly agent: HttpAgent;
  private readonly inFlight = new Map<string, Promise<unknown>>();

  constructor(context: RolloutContext) {
    this.context = context;
    this.agent = httpAgent({ lookup: checkedLookup(context.config) });
  }

  /** Starts a request for further rows of a stream when it has few left. Does nothing for streams with another source. */
  request(stream: BatchStreamRow): void {
    const { batch_id: batchId } = stream;
    const { source } = streamRequest(stream);
    if (source.kind !== 'generator' || stream.rows_complete === 1 || this.inFlight.has(batchId)) return;
    if (stream.row_count - stream.position >= PAGE_ROWS || this.context.time.nowMs() < stream.source_retry_ms) return;
    const fetched = postponeWhileUnavailable(this.context.log, 'rows of a generator wait', () =>
      this.fetchRows(stream, source.url),
    )
      .catch((thrown) =>
        this.context.log.error({ batch_id: batchId, err: thrown }, 'rows of a generator were not added'),
      )
      .finally(() => this.inFlight.delete(batchId));
    this.inFlight.set(batchId, fetched);
  }

  /** Waits for the requests in progress, which end when the server closes. */
  async close(): Promise<void> {
    await Promise.all(this.inFlight.values());
    await this.agent.destroy();
  }

  private async fetchRows({ batch_id: batchId, row_count: after }: BatchStreamRow, url: string): Promise<void> {
    const { context } = this;
    try {
      const { rows, done } = await this.page(url, after);
      if (rows.length === 0 && !done)
        throw new FloeError('engine_error', 'the generator returned no rows, and not "done": true');
      await addRows(context, batchId, { rows, after, last: done });
    } catch (thrown) {
      const error = asFloeError(thrown);
      if (error.code === 'store_unavailable') throw error;
      // A conflict means that another server has added these rows.
      if (error.code === 'conflict' || context.closing.aborted) return;
      context.log.warn({ batch_id: batchId, err: error }, 'a generator of rows failed; it is requested again later');
      await context.store.transaction((tables) =>
        tables.batches.updateStream(batchId, {
          source_error: storedMessage(error.message),
          source_retry_ms: context.time.nowMs() + RETRY_MS,
        }),
      );
    }
  }

  private async page(url: string, after: number): Promise<z.infer<typeof pageSchema>> {
    const { closing, clock } = this.context;
    const target = new URL(url);
    target.searchParams.set('after', String(after));
    target.searchParams.set('limit', String(PAGE_ROWS));
    const reply = await callHttp(
      target,
      { method: 'GET', agent: this.agent, signal: closing },
      {
        clock,
        limitMs: REPLY_TIMEOUT_MS,
        late: () => new FloeError('deadline_exceeded', `the generator did not answer within ${REPLY_TIMEOUT_MS} ms`),
        maxBytes: REPLY_LIMIT_BYTES,
        tooLarge: () =>
          new FloeError('body_too_large', `the reply of the generator exceeds ${REPLY_LIMIT_BYTES} bytes`),
      },
    );
    if (reply.status !== 200) throw new FloeError('peer_unreachable', `the generator answered with ${reply.status}`);
    return parseAs(pageSchema, parseJson(reply.body, MAX_REPLY_VALUES), 'reply of the generator');
  }
}
