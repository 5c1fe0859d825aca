import type { RouteTable } from '../http.ts';
import { ownRoutes } from '../own-routes.ts';
import type { VllmContext } from './context.ts';

/** What OpenAI's API once told of a model; every server still does. */
function modelPermission({ startedMs }: VllmContext): object {
  const may = { allow_sampling: true, allow_logprobs: true, allow_view: true, allow_search_indices: false };
  return {
    ...{ id: 'modelperm-sim', object: 'model_permission', created: Math.floor(startedMs / 1000), ...may },
    ...{ allow_create_engine: false, allow_fine_tuning: false, organization: '*', group: null, is_blocking: false },
  };
}

/** What every server answers about itself, and the simulator's own routes below `/__sim/`. */
export function controlRoutes(context: VllmContext): RouteTable {
  const { engine } = context;
  return {
    'GET /health': (exchange) => exchange.text(200, ''),
    'GET /ping': (exchange) => exchange.text(200, ''),
    'GET /load': (exchange) => exchange.json(200, { server_load: engine.running + engine.waiting }),
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
            permission: [modelPermission(context)],
          },
        ],
      }),
    ...ownRoutes(context),
  };
}
