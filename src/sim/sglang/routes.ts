import type { SimContext } from '../context.ts';
import type { Handler, RouteTable } from '../http.ts';
import { ownRoutes } from '../own-routes.ts';
import { chatCompletions } from './chat.ts';
import { completions } from './completions.ts';
import { controlRoutes } from './control.ts';
import { generate } from './generate.ts';
import { infoRoutes } from './info.ts';
import { SglangState } from './state.ts';
import { detokenize, parseFunctionCall, separateReasoningRoute, tokenize } from './texts.ts';

export { replySglangError } from './errors.ts';

/** Everything that the simulated SGLang server answers. */
export function sglangRoutes(context: SimContext): RouteTable {
  const state = new SglangState(context);
  const tokenizing: Handler = (exchange) => tokenize(exchange, state);
  const detokenizing: Handler = (exchange) => detokenize(exchange, state);
  return {
    ...ownRoutes(context),
    ...infoRoutes(state),
    ...controlRoutes(state),
    'POST /generate': (exchange) => generate(exchange, state),
    'POST /v1/chat/completions': (exchange) => chatCompletions(exchange, state),
    'POST /v1/completions': (exchange) => completions(exchange, state),
    'POST /tokenize': tokenizing,
    'POST /v1/tokenize': tokenizing,
    'POST /detokenize': detokenizing,
    'POST /v1/detokenize': detokenizing,
    'POST /parse_function_call': parseFunctionCall,
    'POST /separate_reasoning': separateReasoningRoute,
  };
}
