import { FloeError, parseAs } from '@floe-rl/core';
import { z } from 'zod';
import type { Exchange, RouteTable } from '../http.ts';
import { MAX_LOGIT } from '../policy/scenario.ts';
import { PAUSE_MODES, type SglangState } from './state.ts';

const abortSchema = z.looseObject({ rid: z.string().nullish(), abort_all: z.boolean().nullish() });
const pauseSchema = z.looseObject({ mode: z.enum(PAUSE_MODES).nullish() });
const relabelSchema = z.looseObject({ new_version: z.string().min(1), abort_all_requests: z.boolean().nullish() });

const updateFields = {
  weight_version: z.string().min(1).nullish(),
  flush_cache: z.boolean().nullish(),
  abort_all_requests: z.boolean().nullish(),
  logits: z
    .record(z.string(), z.record(z.string(), z.array(z.number().min(-MAX_LOGIT).max(MAX_LOGIT))))
    .nullish()
    .describe("the simulator's own field: the logits that the update changes"),
};
const diskSchema = z.looseObject({ model_path: z.string().min(1), load_format: z.string().nullish(), ...updateFields });
const distributedSchema = z.looseObject({
  names: z.array(z.string()),
  dtypes: z.array(z.string()),
  shapes: z.array(z.array(z.int())),
  group_name: z.string().nullish(),
  ...updateFields,
});
type WeightUpdate = z.infer<z.ZodObject<typeof updateFields>>;

/** Returns the routes that pause generation, abort calls and update weights. */
export function controlRoutes(state: SglangState): RouteTable {
  const { context } = state;
  const flush = (exchange: Exchange): void => {
    if (state.holdsCache) exchange.text(400, 'Flush cache failed: there are running or waiting requests.\n');
    else {
      context.engine.cache.clear();
      exchange.text(200, 'Cache flushed.\n');
    }
  };
  return {
    'POST /abort_request': async (exchange) => {
      const { rid, abort_all: abortsAll } = parseAs(abortSchema, await exchange.body(), 'abort request');
      if (abortsAll === true) context.engine.abort();
      else state.abort(rid ?? '');
      exchange.text(200, '');
    },
    'POST /pause_generation': async (exchange) => {
      const { mode } = parseAs(pauseSchema, await exchange.body(), 'pause request');
      await state.pause(mode ?? 'abort');
      exchange.json(200, { message: 'Generation paused successfully.', status: 'ok' });
    },
    'POST /continue_generation': (exchange) => {
      state.resume();
      exchange.json(200, { message: 'Generation continued successfully.', status: 'ok' });
    },
    'POST /update_weights_from_disk': async (exchange) => {
      await updateWeights(exchange, state, parseAs(diskSchema, await exchange.body(), 'weight update'));
    },
    'POST /update_weights_from_distributed': async (exchange) => {
      await updateWeights(exchange, state, parseAs(distributedSchema, await exchange.body(), 'weight update'));
    },
    'POST /update_weight_version': async (exchange) => {
      const request = parseAs(relabelSchema, await exchange.body(), 'weight version');
      if (request.abort_all_requests ?? true) context.engine.abort();
      context.weights.relabel(request.new_version);
      const message = `Weight version updated to ${request.new_version}`;
      exchange.json(200, { success: true, message, new_version: request.new_version });
    },
    'GET /flush_cache': flush,
    'POST /flush_cache': flush,
  };
}

/** Applies a weight update. Replies 400 with the reason, and changes nothing, when the update is invalid. */
async function updateWeights(exchange: Exchange, state: SglangState, update: WeightUpdate): Promise<void> {
  const { engine } = state.context;
  if (update.abort_all_requests === true) engine.abort();
  try {
    const pausedCount = await state.exclusively(() => {
      const count = state.pausedCallCount;
      applyUpdate(state, update);
      return count;
    });
    exchange.json(200, {
      success: true,
      message: 'Succeeded to update model weights.',
      num_paused_requests: pausedCount,
    });
  } catch (reason) {
    if (!FloeError.is(reason)) throw reason;
    exchange.json(400, { success: false, message: reason.message, num_paused_requests: 0 });
  }
}

function applyUpdate(state: SglangState, update: WeightUpdate): void {
  const { weights, engine } = state.context;
  const flushesCache = update.flush_cache ?? true;
  if (flushesCache && state.holdsCache) {
    throw new FloeError('conflict', 'Cache flush failed: paused requests hold it; pass flush_cache=false.');
  }
  const version = update.weight_version ?? null;
  if (version !== null) weights.update(version, update.logits ?? undefined);
  else if ((update.logits ?? null) !== null) {
    throw new FloeError('bad_request', 'logits: changed weights need a weight_version of their own');
  }
  if (flushesCache) engine.cache.clear();
}
