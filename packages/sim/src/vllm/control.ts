import { FloeError, parseAs } from '@floe-rl/core';
import { z } from 'zod';
import type { SimContext } from '../context.ts';
import type { SimEngine } from '../engine.ts';
import type { Exchange, RouteTable } from '../http.ts';
import { MAX_LOGIT } from '../policy/scenario.ts';
import type { LogitTable, WeightStore } from '../policy/weights.ts';

const relabelSchema = z.object({ new_version: z.string().min(1) });
const abortSchema = z.object({ request_ids: z.array(z.string()).nullish() });
const rpcSchema = z.object({
  method: z.string().min(1),
  args: z.array(z.unknown()).default([]),
  kwargs: z.record(z.string(), z.unknown()).default({}),
  timeout: z.number().nullish(),
});
const PAUSE_MODES = ['abort', 'wait', 'keep'] as const;

/** Returns the control routes, which vLLM offers only in its development mode. */
export function controlRoutes(context: SimContext): RouteTable {
  const { engine, weights } = context;
  const sleep = new Sleep(engine, weights);
  return {
    'POST /pause': async (exchange) => {
      const mode = queryChoice(exchange, 'mode', PAUSE_MODES);
      const clearsCache = queryFlag(exchange, 'clear_cache', true);
      await engine.pause(mode);
      // Mode `keep` only suspends calls. They need their cached blocks when they resume, so this mode does not clear the cache.
      if (clearsCache && mode !== 'keep') engine.cache.clear();
      sleep.paused = true;
      exchange.json(200, { status: 'paused' });
    },
    'POST /resume': (exchange) => {
      sleep.paused = false;
      if (!sleep.isAsleep) engine.resume();
      exchange.json(200, { status: 'resumed' });
    },
    'GET /is_paused': (exchange) => exchange.json(200, { is_paused: engine.paused }),
    'POST /abort_requests': async (exchange) => {
      const { request_ids: ids } = parseAs(abortSchema, await exchange.body(), 'abort request');
      const abortsAll = ids === undefined || ids === null || ids.length === 0;
      const candidates = (ids ?? []).flatMap((id) => [id, withoutPrefix(id)]);
      exchange.json(200, { status: 'aborted', aborted: engine.abort(abortsAll ? undefined : candidates) });
    },
    'POST /sleep': async (exchange) => {
      const level = queryChoice(exchange, 'level', ['1', '2'] as const);
      await sleep.fallAsleep(level === '2', queryChoice(exchange, 'mode', PAUSE_MODES));
      exchange.text(200, '');
    },
    'POST /wake_up': (exchange) => {
      sleep.wake(exchange.url.searchParams.getAll('tags'));
      exchange.text(200, '');
    },
    'GET /is_sleeping': (exchange) => exchange.json(200, { is_sleeping: sleep.isAsleep }),
    'POST /reset_prefix_cache': (exchange) => {
      engine.cache.clear();
      exchange.json(200, { success: true });
    },
    'GET /server_info': (exchange) => exchange.json(200, { vllm_config: '', vllm_env: {}, system_env: {} }),
    'GET /get_world_size': (exchange) => exchange.json(200, { world_size: 1 }),
    'POST /collective_rpc': async (exchange) => {
      exchange.json(200, {
        results: [callWorker(context, parseAs(rpcSchema, await exchange.body(), 'collective rpc'))],
      });
    },
    ...weightRoutes(context),
  };
}

/** Removes the prefix of an id such as `chatcmpl-<id>`. The ids in replies have this prefix, and clients may use them to abort a call. */
export function withoutPrefix(id: string): string {
  return id.replace(/^(chatcmpl|cmpl|generate-tokens)-/, '');
}

function weightRoutes({ weights }: SimContext): RouteTable {
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
      exchange.json(200, { message: 'Weights updated', status: 'ok', weight_version: weights.reportedVersion });
    },
    'POST /finish_weight_update': async (exchange) => {
      transfer.finish(await exchange.body());
      exchange.json(200, { message: 'Weight update finished', weight_version: weights.reportedVersion });
    },
    'POST /update_weight_version': async (exchange) => {
      const { new_version: version } = parseAs(relabelSchema, await exchange.body(), 'weight version');
      weights.relabel(version);
      exchange.json(200, { success: true, new_version: version });
    },
    'GET /weight_info': (exchange) => exchange.json(200, { weight_version: weights.reportedVersion }),
  };
}

/**
 * Handles a call of `POST /collective_rpc`. The simulated server has a single worker with two methods. Throws `internal`, as an engine
 * does, for any other method.
 */
function callWorker({ engine, weights }: SimContext, { method, args, kwargs }: z.infer<typeof rpcSchema>): unknown {
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

/**
 * Returns the value of a query parameter; the first of `options` when the parameter is absent. Throws `bad_request` for a value that is not
 * in `options`.
 */
function queryChoice<T extends string>(exchange: Exchange, name: string, options: readonly [T, ...T[]]): T {
  const value = exchange.url.searchParams.get(name) ?? options[0];
  const option = options.find((candidate) => candidate === value);
  if (option === undefined) {
    throw new FloeError('bad_request', `${name} must be one of ${options.join(', ')}, not ${value}`, {
      param: `query.${name}`,
    });
  }
  return option;
}

function queryFlag(exchange: Exchange, name: string, fallback: boolean): boolean {
  return queryChoice(exchange, name, fallback ? (['true', 'false'] as const) : (['false', 'true'] as const)) === 'true';
}

/** The parts of an engine's memory that sleep mode releases and that can be restored one by one. */
const MEMORY_PARTS = ['weights', 'kv_cache'] as const;

/** Implements sleep mode, in which the engine samples nothing until all parts of its memory are restored. */
class Sleep {
  /** Whether the engine was also paused by `POST /pause`, so that waking up must not resume it. */
  paused = false;
  private readonly engine: SimEngine;
  private readonly weights: WeightStore;
  private missing: ReadonlySet<string> = new Set();

  constructor(engine: SimEngine, weights: WeightStore) {
    this.engine = engine;
    this.weights = weights;
  }

  get isAsleep(): boolean {
    return this.missing.size > 0;
  }

  /**
   * Pauses the engine and releases its memory. With `losesWeights`, the engine samples with other weights until the next update, but
   * continues to report the old policy version.
   */
  async fallAsleep(losesWeights: boolean, mode: 'abort' | 'wait' | 'keep'): Promise<void> {
    await this.engine.pause(mode);
    this.engine.cache.clear();
    if (losesWeights) this.weights.swapUnannounced();
    this.missing = new Set(MEMORY_PARTS);
  }

  /**
   * Restores the named parts, or all parts when none is named. Sampling resumes when all parts are restored. Throws `bad_request` for an
   * unknown part.
   */
  wake(parts: readonly string[]): void {
    const unknown = parts.find((part) => !MEMORY_PARTS.some((known) => known === part));
    if (unknown !== undefined) {
      throw new FloeError('bad_request', `tags must be among ${MEMORY_PARTS.join(', ')}, not ${unknown}`);
    }
    const restored = parts.length === 0 ? MEMORY_PARTS : parts;
    this.missing = new Set([...this.missing].filter((part) => !restored.includes(part)));
    if (!this.isAsleep && !this.paused) this.engine.resume();
  }
}

const logitsSchema = z.record(z.string(), z.record(z.string(), z.array(z.number().min(-MAX_LOGIT).max(MAX_LOGIT))));

/** Body of a weight update in a short form that only the simulator accepts. It applies the whole update in one call. */
const updateSchema = z.strictObject({ version: z.string().min(1), logits: logitsSchema.optional() });

const initSchema = z.object({ init_info: z.record(z.string(), z.unknown()) });
const partSchema = z.object({ update_info: z.looseObject({ logits: logitsSchema.optional() }) });
const finishSchema = z.object({ weight_version: z.string().min(1).nullish() });

/**
 * Implements vLLM's weight transfer in four phases: init once, then start, any number of parts, and finish, which puts the update in
 * effect. The `update_info` of a part may contain `logits`; the fields that a real engine uses are ignored.
 */
class WeightTransfer {
  private readonly weights: WeightStore;
  private initialized = false;
  /** Logits of the parts received so far; `null` when no update is in progress. */
  private parts: LogitTable[] | null = null;

  constructor(weights: WeightStore) {
    this.weights = weights;
  }

  init(body: unknown): void {
    parseAs(initSchema, body, 'init_weight_transfer_engine');
    this.initialized = true;
  }

  /** Starts an update. Throws `bad_request` when the transfer is not initialized and when another update is in progress. */
  start(): void {
    if (!this.initialized) throw new FloeError('bad_request', 'Weight transfer is not initialized.');
    if (this.parts !== null) throw new FloeError('bad_request', 'A weight update is under way.');
    this.parts = [];
  }

  /**
   * Adds a part to the update, or applies a whole update when the body has the short form of {@link updateSchema}. Throws `bad_request` for
   * a part that arrives before the update was started.
   */
  update(body: unknown): void {
    if (typeof body === 'object' && body !== null && !('update_info' in body)) {
      const { version, logits } = parseAs(updateSchema, body, 'weight update');
      this.weights.update(version, logits);
      return;
    }
    const { update_info: info } = parseAs(partSchema, body, 'weight update');
    this.partsInProgress().push(info.logits ?? {});
  }

  /**
   * Puts the update in effect. When the body has no version name, the server continues to report the old version although the weights
   * changed. Throws `bad_request` when no update is in progress. Discards the update and throws the error of {@link WeightStore.update}
   * when the update is invalid.
   */
  finish(body: unknown): void {
    const { weight_version: version } = parseAs(finishSchema, body, 'finish_weight_update');
    const logits = mergeLogits(this.partsInProgress());
    this.parts = null;
    if (version === undefined || version === null) this.weights.swapUnannounced(logits);
    else this.weights.update(version, logits);
  }

  private partsInProgress(): LogitTable[] {
    if (this.parts === null) throw new FloeError('bad_request', 'No weight update is under way.');
    return this.parts;
  }
}

function mergeLogits(parts: readonly LogitTable[]): LogitTable {
  const table: Record<string, LogitTable[string]> = {};
  for (const part of parts) {
    for (const [scenario, choices] of Object.entries(part)) table[scenario] = { ...table[scenario], ...choices };
  }
  return table;
}
