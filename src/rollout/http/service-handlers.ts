import type { FastifyReply } from 'fastify';
import { onAbort } from '../../core/abort.ts';
import { KIB } from '../../core/bytes.ts';
import { FloeError } from '../../core/errors.ts';
import type { RolloutContext } from '../context.ts';
import { EventFeed } from '../events.ts';
import type { Handlers } from './handler.ts';
import { openApi } from './openapi.ts';

/**
 * Maximum number of characters of events that are joined for one write, because during a burst one write for each event would be too
 * expensive.
 */
const WRITE_CHARS = 64 * KIB;
/** Time for which the result of one check of the store answers all requests for `/ready`. */
const READY_CACHE_MS = 1_000;

/** The part of a prom-client Registry that this file needs. */
export interface MetricsRegistry {
  readonly contentType: string;
  metrics(): Promise<string>;
}

/** Creates the handlers of the routes for operators and dashboards. */
export function serviceHandlers(
  context: RolloutContext,
  metricsRegistry: MetricsRegistry | null,
): Handlers<'events' | 'health' | 'ready' | 'openapi' | 'metrics'> {
  const feed = new EventFeed(context.events);
  const checkStore = cachedStoreCheck(context);
  return {
    events: ({ reply }) => streamEvents(context, feed, reply),
    health: () => ({ status: 'ok' }),
    ready: async () => {
      if (context.closing.aborted) throw new FloeError('not_ready', 'the server is shutting down');
      await checkStore();
      return { status: 'ready' };
    },
    openapi: () => openApi(),
    metrics: async ({ reply }) => {
      if (metricsRegistry === null) throw new FloeError('not_found', 'this server was started without metrics');
      reply.type(metricsRegistry.contentType);
      return metricsRegistry.metrics();
    },
  };
}

/**
 * Returns a function that rejects when the store accepts no transactions. The result of a check is reused for a second, because the route
 * needs no token, and any number of requests may arrive.
 */
function cachedStoreCheck({ store, clock }: RolloutContext): () => Promise<unknown> {
  let check: Promise<unknown> | null = null;
  let expiresMs = 0;
  return () => {
    const nowMs = clock.monotonicMs();
    if (check === null || nowMs >= expiresMs) {
      expiresMs = nowMs + READY_CACHE_MS;
      check = store.transaction((tables) => tables.results.newestCursor());
    }
    return check;
  };
}

function streamEvents(context: RolloutContext, feed: EventFeed, reply: FastifyReply): void {
  reply.hijack();
  const { raw } = reply;
  raw.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store', 'x-accel-buffering': 'no' });
  let next = feed.end;
  const drop = (): void => {
    context.log.warn({ missed_from: next }, 'closed an event stream because its client reads too slowly');
    raw.destroy();
  };
  const pump = (): void => {
    if (feed.at(next) === null && !raw.destroyed) drop();
    // When the client reads slowly, writing stops here; the `drain` event of the connection continues it once the buffer is empty.
    while (!raw.writableNeedDrain && !raw.destroyed) {
      let batch = '';
      for (let text = feed.at(next); text && batch.length < WRITE_CHARS; text = feed.at(++next)) batch += text;
      if (batch === '') return;
      raw.write(batch);
    }
  };
  let cancelTimer = (): void => {};
  const heartbeat = (): void => {
    cancelTimer = context.clock.schedule(context.config.event_heartbeat_seconds * 1000, () => {
      if (!raw.writableNeedDrain) raw.write(': heartbeat\n\n');
      heartbeat();
    });
  };
  const unsubscribe = feed.subscribe(pump);
  let release = (): void => {};
  const end = (): void => {
    unsubscribe();
    cancelTimer();
    release();
    raw.end();
  };
  raw.on('drain', pump);
  raw.once('close', end);
  raw.write(': connected\n\n');
  heartbeat();
  release = onAbort(context.closing, end);
}
