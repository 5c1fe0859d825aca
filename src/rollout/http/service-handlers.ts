import type { FastifyReply } from 'fastify';
import { FloeError } from '../../core/errors.ts';
import type { RolloutContext } from '../context.ts';
import { EventFeed } from '../event-feed.ts';
import { openApi } from '../openapi.ts';
import type { Handlers } from './handler.ts';

/** Events of a burst are written together: one write for each would cost more than all else. */
const WRITE_CHARS = 64 * 1024;

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
  return {
    events: ({ reply }) => streamEvents(context, feed, reply),
    health: () => ({ status: 'ok' }),
    ready: async () => {
      if (context.closing.aborted) throw new FloeError('not_ready', 'the server is shutting down');
      await context.store.transaction((tables) => tables.results.newestCursor());
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
