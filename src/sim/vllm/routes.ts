import { z } from 'zod';
import { parseAs } from '../../core/parse.ts';
import type { RouteTable } from '../http.ts';
import { chatCompletions } from './chat.ts';
import { completions } from './completions.ts';
import { type VllmContext, vllmError } from './context.ts';
import { controlRoutes } from './control.ts';
import { derenderChat } from './derender.ts';
import { devRoutes, withoutPrefix } from './dev.ts';
import { GENERATE_PATH, generateTokens } from './generate.ts';
import { anthropicMessages, countMessageTokens } from './messages.ts';
import { renderChatRequest, renderCompletionRequest } from './render.ts';
import { openaiResponses } from './responses.ts';
import { detokenize, tokenize } from './tokenize.ts';

const abortSchema = z.object({ request_ids: z.array(z.string()) });

/** Everything that the simulated vLLM server answers. */
export function vllmRoutes(context: VllmContext): RouteTable {
  return {
    ...controlRoutes(context),
    ...(context.config.devMode ? devRoutes(context) : {}),
    ...(context.config.scaleOut ? scaleOutRoutes(context) : refusing(scaleOutRoutes(context))),
    'POST /v1/chat/completions': (exchange) => chatCompletions(exchange, context),
    'POST /v1/completions': (exchange) => completions(exchange, context),
    'POST /v1/messages': (exchange) => anthropicMessages(exchange, context),
    'POST /v1/messages/count_tokens': (exchange) => countMessageTokens(exchange, context),
    'POST /v1/responses': (exchange) => openaiResponses(exchange, context),
    'POST /tokenize': (exchange) => tokenize(exchange, context),
    'POST /detokenize': (exchange) => detokenize(exchange, context),
  };
}

function scaleOutRoutes(context: VllmContext): RouteTable {
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

/** Without --enable-scale-out the addresses exist, and nobody may use them. */
function refusing(routes: RouteTable): RouteTable {
  const message = 'Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.';
  const refusal = vllmError(message, 403, null, 'PermissionDeniedError');
  return Object.fromEntries(Object.keys(routes).map((route) => [route, (exchange) => exchange.json(403, refusal)]));
}
