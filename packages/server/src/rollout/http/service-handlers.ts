import { FloeError } from '@floe-rl/core';
import type { RolloutContext } from '../context.ts';
import { eventFeed } from '../events.ts';
import { streamEvents } from './event-stream.ts';
import type { Handlers } from './handler.ts';
import { openApi } from './openapi.ts';

/** Comments that keep an idle event stream open. */
const FRAMES = { first: () => ': connected\n\n', heartbeat: () => ': heartbeat\n\n' };
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
): Handlers<'tokenTexts' | 'events' | 'health' | 'ready' | 'openapi' | 'metrics'> {
  const feed = eventFeed(context.events);
  const checkStore = cachedStoreCheck(context);
  return {
    tokenTexts: ({ body }) => ({ texts: context.tokenTexts(body.model, body.ids) }),
    events: ({ reply }) => streamEvents(context, feed, reply, FRAMES),
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
 * Returns a function that rejects when the store accepts no transactions. The result of a check is reused for a second, because
 * the route for readiness needs no token, so any number of requests may arrive.
 */
function cachedStoreCheck({ store, clock }: RolloutContext): () => Promise<unknown> {
  let check: Promise<unknown> = Promise.resolve();
  let expiresMs = Number.NEGATIVE_INFINITY;
  return () => {
    const nowMs = clock.monotonicMs();
    if (nowMs >= expiresMs) {
      expiresMs = nowMs + READY_CACHE_MS;
      check = store.transaction((tables) => tables.results.newestCursor());
    }
    return check;
  };
}
