import { parseAs } from '@floe-rl/core';
import { z } from 'zod';
import type { SimContext } from '../context.ts';
import type { RouteTable } from '../http.ts';
import { chatCompletions } from './chat.ts';
import { completions } from './completions.ts';
import { vllmError } from './context.ts';
import { controlRoutes, withoutPrefix } from './control.ts';
import { derenderChat } from './derender.ts';
import { GENERATE_PATH, generateTokens } from './generate.ts';
import { renderChatRequest, renderCompletionRequest } from './render.ts';
import { detokenize, tokenize } from './tokenize.ts';

const abortSchema = z.object({ request_ids: z.array(z.string()) });

/** Returns the routes of the simulated vLLM server. */
export function vllmRoutes(context: SimContext): RouteTable {
  return {
    ...infoRoutes(context),
    ...(context.config.devMode ? controlRoutes(context) : {}),
    ...(context.config.scaleOut ? scaleOutRoutes(context) : refusedRoutes(scaleOutRoutes(context))),
    'POST /v1/chat/completions': (exchange) => chatCompletions(exchange, context),
    'POST /v1/completions': (exchange) => completions(exchange, context),
    'POST /tokenize': (exchange) => tokenize(exchange, context),
    'POST /detokenize': (exchange) => detokenize(exchange, context),
  };
}

/** Returns the routes that describe the server. */
function infoRoutes(context: SimContext): RouteTable {
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
            id: context.servedModel.name,
            object: 'model',
            created: Math.floor(context.startedMs / 1000),
            owned_by: 'floe',
            root: context.servedModel.name,
            parent: null,
            max_model_len: engine.options.maxModelLen,
            permission: [modelPermission(context)],
          },
        ],
      }),
  };
}

/** Returns an obsolete field of OpenAI's list of models, which vLLM still sends. */
function modelPermission({ startedMs }: SimContext): object {
  const may = { allow_sampling: true, allow_logprobs: true, allow_view: true, allow_search_indices: false };
  return {
    ...{ id: 'modelperm-sim', object: 'model_permission', created: Math.floor(startedMs / 1000), ...may },
    ...{ allow_create_engine: false, allow_fine_tuning: false, organization: '*', group: null, is_blocking: false },
  };
}

function scaleOutRoutes(context: SimContext): RouteTable {
  return {
    [`POST ${GENERATE_PATH}`]: (exchange) => generateTokens(exchange, context),
    'POST /v1/chat/completions/render': (exchange) => renderChatRequest(exchange, context),
    'POST /v1/completions/render': (exchange) => renderCompletionRequest(exchange, context),
    'POST /v1/chat/completions/derender': (exchange) => derenderChat(exchange, context),
    'POST /inference/v1/abort_requests': async (exchange) => {
      const { request_ids: ids } = parseAs(abortSchema, await exchange.body(), 'abort request');
      context.engine.abort(ids.flatMap((id) => [id, withoutPrefix(id)]));
      exchange.text(200, '');
    },
  };
}

/** Returns `routes` with handlers that refuse every call, as vLLM does without --enable-scale-out. */
function refusedRoutes(routes: RouteTable): RouteTable {
  const message = 'Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.';
  const refusal = vllmError(message, 403, null, 'PermissionDeniedError');
  return Object.fromEntries(Object.keys(routes).map((route) => [route, (exchange) => exchange.json(403, refusal)]));
}
