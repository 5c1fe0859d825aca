import type { FastifyReply } from 'fastify';
import { FloeError } from '../../core/errors.ts';
import type { RolloutContext } from '../context.ts';
import { openApi } from '../openapi.ts';
import type { Handlers } from './handler.ts';

/** An event stream whose client has not read this much is dropped: its events would otherwise pile up in memory. */
const MAX_UNREAD_BYTES = 1024 * 1024;

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
  return {
    events: ({ reply }) => streamEvents(context, reply),
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

function streamEvents(context: RolloutContext, reply: FastifyReply): void {
  reply.hijack();
  const { raw } = reply;
  raw.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store', 'x-accel-buffering': 'no' });
  const write = (text: string): void => {
    raw.write(text);
    if (raw.writableLength > MAX_UNREAD_BYTES) {
      context.log.warn({ unread_bytes: raw.writableLength }, 'dropped an event stream whose client does not read');
      raw.destroy();
    }
  };
  let cancelTimer = (): void => {};
  const heartbeat = (): void => {
    cancelTimer = context.clock.schedule(context.config.event_heartbeat_seconds * 1000, () => {
      write(': heartbeat\n\n');
      heartbeat();
    });
  };
  const unsubscribe = context.events.subscribe((event) => {
    write(`event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
  });
  const end = (): void => {
    unsubscribe();
    cancelTimer();
    context.closing.removeEventListener('abort', end);
    raw.end();
  };
  raw.once('close', end);
  context.closing.addEventListener('abort', end, { once: true });
  write(': connected\n\n');
  heartbeat();
  if (context.closing.aborted) end();
}
