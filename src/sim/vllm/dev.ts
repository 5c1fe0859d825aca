import { z } from 'zod';
import { FloeError } from '../../core/errors.ts';
import { parseAs } from '../../core/parse.ts';
import type { Exchange, RouteTable } from '../http.ts';
import type { VllmContext } from './context.ts';
import { Sleep } from './sleep.ts';
import { updateSchema, WeightTransfer } from './weight-transfer.ts';

const relabelSchema = z.object({ new_version: z.string().min(1) });
const abortSchema = z.object({ request_ids: z.array(z.string()).nullish() });
const rpcSchema = z.object({
  method: z.string().min(1),
  args: z.array(z.unknown()).default([]),
  kwargs: z.record(z.string(), z.unknown()).default({}),
  timeout: z.number().nullish(),
});
const pauseModes = ['abort', 'wait', 'keep'] as const;

/** The control plane: routes that vLLM has in its development mode only. */
export function devRoutes(context: VllmContext): RouteTable {
  const { engine, weights } = context;
  const sleep = new Sleep(engine, weights);
  return {
    'POST /pause': async (exchange) => {
      const mode = choiceOf(exchange, 'mode', pauseModes);
      const clears = flag(exchange, 'clear_cache', true);
      await engine.pause(mode);
      // What is frozen goes on with its cache.
      if (clears && mode !== 'keep') engine.cache.clear();
      sleep.paused = true;
      exchange.json(200, { status: 'paused' });
    },
    'POST /resume': (exchange) => {
      sleep.paused = false;
      if (!sleep.asleep) engine.resume();
      exchange.json(200, { status: 'resumed' });
    },
    'GET /is_paused': (exchange) => exchange.json(200, { is_paused: engine.paused }),
    'POST /abort_requests': async (exchange) => {
      const { request_ids: ids } = parseAs(abortSchema, await exchange.body(), 'abort request');
      const all = ids === undefined || ids === null || ids.length === 0;
      const known = (ids ?? []).flatMap((id) => [id, withoutPrefix(id)]);
      exchange.json(200, { status: 'aborted', aborted: engine.abort(all ? undefined : known) });
    },
    'POST /sleep': async (exchange) => {
      const level = choiceOf(exchange, 'level', ['1', '2'] as const);
      await sleep.fallAsleep(level === '2', choiceOf(exchange, 'mode', pauseModes));
      exchange.text(200, '');
    },
    'POST /wake_up': (exchange) => {
      sleep.wake(exchange.url.searchParams.getAll('tags'));
      exchange.text(200, '');
    },
    'GET /is_sleeping': (exchange) => exchange.json(200, { is_sleeping: sleep.asleep }),
    'POST /reset_prefix_cache': (exchange) => {
      engine.cache.clear();
      exchange.json(200, { success: true });
    },
    'GET /server_info': (exchange) => exchange.json(200, { vllm_config: '', vllm_env: {}, system_env: {} }),
    'GET /get_world_size': (exchange) => exchange.json(200, { world_size: 1 }),
    'POST /collective_rpc': async (exchange) => {
      exchange.json(200, { results: [rpc(context, parseAs(rpcSchema, await exchange.body(), 'collective rpc'))] });
    },
    ...weightRoutes(context),
  };
}

/** Callers may know an id with the prefix that it has in the reply. */
export function withoutPrefix(id: string): string {
  return id.replace(/^(chatcmpl|cmpl|generate-tokens|resp)[-_]/, '');
}

function weightRoutes({ weights }: VllmContext): RouteTable {
  const transfer = new WeightTransfer(weights);
  return {
    'POST /init_weight_transfer_engine': async (exchange) => {
      transfer.init(await exchange.body());
      exchange.json(200, { message: 'Weight transfer initialized' });
    },
    'POST /start_weight_update': (exchange) => {
      transfer.start();
      exchange.json(200, { message: 'Weight update started' });
    },
    'POST /update_weights': async (exchange) => {
      transfer.update(await exchange.body());
      exchange.json(200, { message: 'Weights updated', status: 'ok', weight_version: weights.announced });
    },
    'POST /finish_weight_update': async (exchange) => {
      transfer.finish(await exchange.body());
      exchange.json(200, { message: 'Weight update finished', weight_version: weights.announced });
    },
    'POST /update_weight_version': async (exchange) => {
      const { new_version: version } = parseAs(relabelSchema, await exchange.body(), 'weight version');
      weights.relabel(version);
      exchange.json(200, { success: true, new_version: version });
    },
    'GET /weight_info': (exchange) => exchange.json(200, { weight_version: weights.announced }),
  };
}

/** Calls a method of the one worker, which has two. Throws `internal`, as an engine whose workers have no such method. */
function rpc({ engine, weights }: VllmContext, { method, args, kwargs }: z.infer<typeof rpcSchema>): unknown {
  switch (method) {
    case 'reset_prefix_cache':
      engine.cache.clear();
      return true;
    case 'update_weights': {
      const [version] = args;
      const update = parseAs(updateSchema, version === undefined ? kwargs : { version, ...kwargs }, 'update_weights');
      weights.update(update.version, update.logits);
      return null;
    }
    default:
      throw new FloeError('internal', `Worker has no method ${method}`);
  }
}

/** A query parameter that is one of `options`, the first when it is left out. Throws `bad_request`. */
function choiceOf<T extends string>(exchange: Exchange, name: string, options: readonly [T, ...T[]]): T {
  const asked = exchange.url.searchParams.get(name) ?? options[0];
  const option = options.find((known) => known === asked);
  if (option === undefined) {
    throw new FloeError('bad_request', `${name} must be one of ${options.join(', ')}, not ${asked}`, {
      param: `query.${name}`,
    });
  }
  return option;
}

function flag(exchange: Exchange, name: string, otherwise: boolean): boolean {
  return choiceOf(exchange, name, otherwise ? (['true', 'false'] as const) : (['false', 'true'] as const)) === 'true';
}
