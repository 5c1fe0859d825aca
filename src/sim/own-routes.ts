import { parseAs } from '../core/parse.ts';
import type { SimContext } from './context.ts';
import { faultListSchema } from './faults.ts';
import type { RouteTable } from './http.ts';

/** The simulator's own routes, which no engine has: the same on every face. */
export function ownRoutes({ ledger, faults, weights }: SimContext): RouteTable {
  return {
    'GET /__sim/ledger': (exchange) => {
      const query = exchange.url.searchParams;
      const sessionId = query.get('session_id');
      const requestId = query.get('request_id');
      const entries = ledger.entries({
        ...(sessionId === null ? {} : { sessionId }),
        ...(requestId === null ? {} : { requestId }),
      });
      exchange.json(200, { total: ledger.total, entries });
    },
    'GET /__sim/faults': (exchange) => exchange.json(200, { faults: faults.list() }),
    'POST /__sim/faults': async (exchange) => {
      faults.set(parseAs(faultListSchema, await exchange.body(), 'faults').faults);
      exchange.json(200, { faults: faults.list() });
    },
    'DELETE /__sim/faults': (exchange) => {
      faults.set([]);
      exchange.json(200, { faults: [] });
    },
    'GET /__sim/weights': (exchange) => exchange.json(200, weights.current),
  };
}
