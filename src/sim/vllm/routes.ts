import type { RouteTable } from '../http.ts';
import { chatCompletions } from './chat.ts';
import { completions } from './completions.ts';
import type { VllmContext } from './context.ts';
import { controlRoutes } from './control.ts';
import { detokenize, tokenize } from './tokenize.ts';

/** Everything that the simulated vLLM server answers. */
export function vllmRoutes(context: VllmContext): RouteTable {
  return {
    ...controlRoutes(context),
    'POST /v1/chat/completions': (exchange) => chatCompletions(exchange, context),
    'POST /v1/completions': (exchange) => completions(exchange, context),
    'POST /tokenize': (exchange) => tokenize(exchange, context),
    'POST /detokenize': (exchange) => detokenize(exchange, context),
  };
}
