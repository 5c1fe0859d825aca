import type { FastifyReply } from 'fastify';
import { FloeError } from '../../core/errors.ts';
import type { RolloutContext } from '../context.ts';
import { EventFeed } from '../event-feed.ts';
import type { Handlers } from './handler.ts';
import { openApi } from './openapi.ts';

/** Events of a burst are written together: one write for each would cost more than all else. */
const WRITE_CHARS = 64 * 1024;
const READY_EVERY_MS = 1_000;

/** The part of a prom-client Registry that is needed. */
export interface MetricsRegistry {
  readonly contentType: string;
  metrics(): Promise<string>;
}

/** What operators and dashboards call. */
export function serviceHandlers(
  context: RolloutContext,
  metricsRegistry: MetricsRegistry | null,
): Handlers<'events' | 'health' | 'ready' | 'openapi' | 'metrics'> {
  const feed = new EventFeed(context.events);
  const ready = sharedLook(context);
  return {
    events: ({ reply }) => streamEvents(context, feed, reply),
    health: () => ({ status: 'ok' }),
    ready: async () => {
      if (context.closing.aborted) throw new FloeError('not_ready', 'the server is shutting down');
      await ready();
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

/** Whether the store takes transactions. Anybody may ask, as often as they like: one look serves all who ask within a second. */
function sharedLook({ store, clock }: RolloutContext): () => Promise<unknown> {
  let look: Promise<unknown> | null = null;
  let againMs = 0;
  return () => {
    const nowMs = clock.monotonicMs();
    if (look === null || nowMs >= againMs) {
      againMs = nowMs + READY_EVERY_MS;
      look = store.transaction((tables) => tables.results.newestCursor());
    }
    return look;
  };
}

function streamEvents(context: RolloutContext, feed: EventFeed, reply: FastifyReply): void {
  reply.hijack();
  const { raw } = reply;
  raw.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store', 'x-accel-buffering': 'no' });
  let next = feed.end;
  const drop = (): void => {
    context.log.warn({ missed_from: next }, 'dropped an event stream whose client reads too slowly');
    raw.destroy();
  };
  const pump = (): void => {
    if (feed.at(next) === null && !raw.destroyed) drop();
    // Goes on with the `drain` of the connection once the client has read what is on its way.
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
  const end = (): void => {
    unsubscribe();
    cancelTimer();
    context.closing.removeEventListener('abort', end);
    raw.end();
  };
  raw.on('drain', pump);
  raw.once('close', end);
  context.closing.addEventListener('abort', end, { once: true });
  raw.write(': connected\n\n');
  heartbeat();
  if (context.closing.aborted) end();
}
