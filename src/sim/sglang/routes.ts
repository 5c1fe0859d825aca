import type { SimContext } from '../context.ts';
import type { ErrorReplier, RouteTable } from '../http.ts';

/** Everything that the simulated SGLang server answers. */
export function sglangRoutes(context: SimContext): RouteTable {
  return {
    'GET /health': (exchange) => exchange.text(context.engine.paused ? 503 : 200, ''),
  };
}

/** SGLang's error object. */
export const replySglangError: ErrorReplier = (exchange, error) => {
  exchange.json(error.status, { object: 'error', message: error.message, type: 'BadRequest', code: error.status });
};
