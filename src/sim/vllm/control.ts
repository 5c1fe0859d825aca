import { z } from 'zod';
import { FloeError } from '../../core/errors.ts';
import { parseAs } from '../../core/parse.ts';
import type { Exchange, RouteTable } from '../http.ts';
import { ownRoutes } from '../own-routes.ts';
import { MAX_LOGIT } from '../scenario.ts';
import type { VllmContext } from './context.ts';

const logitsSchema = z.record(z.string(), z.record(z.string(), z.array(z.number().min(-MAX_LOGIT).max(MAX_LOGIT))));
const updateSchema = z.strictObject({ version: z.string().min(1), logits: logitsSchema.optional() });
const relabelSchema = z.object({ new_version: z.string().min(1) });
const abortSchema = z.object({ request_ids: z.array(z.string()).nullish() });
const pauseModes = ['abort', 'wait', 'keep'] as const;

/** Routes of the engine's control plane, and the simulator's own below `/__sim/`. */
export function controlRoutes(context: VllmContext): RouteTable {
  const { engine, weights } = context;
  return {
    'GET /health': (exchange) => exchange.text(200, ''),
    'GET /ping': (exchange) => exchange.text(200, ''),
    'GET /version': (exchange) => exchange.json(200, { version: context.config.version }),
    'GET /metrics': async (exchange) =>
      exchange.text(200, await context.metrics.text(), { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' }),
    'GET /v1/models': (exchange) =>
      exchange.json(200, {
        object: 'list',
        data: [
          {
            id: context.identity.model,
            object: 'model',
            created: Math.floor(context.startedMs / 1000),
            owned_by: 'floe',
            root: context.identity.model,
            parent: null,
            max_model_len: engine.options.maxModelLen,
          },
        ],
      }),
    'POST /pause': async (exchange) => {
      await engine.pause(pauseMode(exchange));
      exchange.json(200, { status: 'paused' });
    },
    'POST /resume': (exchange) => {
      engine.resume();
      exchange.json(200, { status: 'resumed' });
    },
    'GET /is_paused': (exchange) => exchange.json(200, { is_paused: engine.paused }),
    'POST /abort_requests': async (exchange) => {
      const { request_ids: ids } = parseAs(abortSchema, await exchange.body(), 'abort request');
      // Callers may know the id with the prefix of the reply's id.
      const bare = ids?.map((id) => id.replace(/^(chatcmpl|cmpl)-/, ''));
      const aborted = engine.abort(bare === undefined || bare.length === 0 ? undefined : bare);
      exchange.json(200, { status: 'aborted', aborted });
    },
    'POST /update_weights': async (exchange) => {
      const { version, logits } = parseAs(updateSchema, await exchange.body(), 'weight update');
      weights.update(version, logits);
      exchange.json(200, { status: 'ok', weight_version: weights.announced });
    },
    'POST /update_weight_version': async (exchange) => {
      const { new_version: version } = parseAs(relabelSchema, await exchange.body(), 'weight version');
      weights.relabel(version);
      exchange.json(200, { status: 'ok', weight_version: version });
    },
    'GET /weight_info': (exchange) => exchange.json(200, { weight_version: weights.announced }),
    'POST /reset_prefix_cache': (exchange) => {
      engine.cache.clear();
      exchange.text(200, '');
    },
    ...ownRoutes(context),
  };
}

function pauseMode(exchange: Exchange): (typeof pauseModes)[number] {
  const asked = exchange.url.searchParams.get('mode') ?? 'abort';
  const mode = pauseModes.find((known) => known === asked);
  if (mode === undefined)
    throw new FloeError('bad_request', `mode must be one of ${pauseModes.join(', ')}, not ${asked}`);
  return mode;
}
