import { type Clock, FloeError, parseAs, systemClock } from '@floe-rl/core';
import { type SimConfig, type SimConfigInput, simConfigSchema } from './config.ts';
import { ServedModel, type SimContext, ToolCallIds } from './context.ts';
import { SimEngine } from './engine.ts';
import { FaultInjector, type FaultInput, faultListSchema } from './faults.ts';
import { type RouteTable, SimHttpServer } from './http.ts';
import { Ledger } from './ledger.ts';
import { VllmMetrics } from './metrics.ts';
import { newOracle, type Oracle } from './policy/oracle.ts';
import { Policy } from './policy/policy.ts';
import { NOISE } from './policy/scripted-reply.ts';
import { type LogitTable, WeightStore } from './policy/weights.ts';
import { replySglangError } from './sglang/errors.ts';
import { sglangRoutes } from './sglang/routes.ts';
import { TURN_START } from './template.ts';
import { replyVllmError } from './vllm/context.ts';
import { vllmRoutes } from './vllm/routes.ts';
import { bundledVocabulary } from './vocabulary.ts';

/**
 * Options of a simulated engine: the settings of {@link simConfigSchema}, all optional, and the clock for delays and timestamps (by default
 * the system clock).
 */
export type SimOptions = SimConfigInput & { readonly clock?: Clock };

/** A running simulated engine with its HTTP server. */
export type SimServer = {
  /** Base URL of the server without `/v1`, such as `http://127.0.0.1:40123`. */
  readonly url: string;
  /** Name of the served model, as configured. */
  readonly model: string;
  /** Record of every token that the engine sampled. A test compares it with the data that a client or trainer received. */
  readonly ledger: Ledger;
  /**
   * The engine without its HTTP API. A test uses it to pause, resume and abort, and to read the number of running and waiting calls and the
   * prefix cache.
   */
  readonly engine: SimEngine;
  /** Recomputes the log-probabilities of a reply independently of the engine. */
  readonly oracle: Oracle;
  /**
   * Puts a version of the weights in effect immediately, also for the next tokens of running replies. `logits` overrides the current
   * logits. When `logits` is left out and the version was in effect before, the logits that it had then are restored. Throws the errors of
   * {@link WeightStore.update}.
   */
  updateWeights(version: string, logits?: LogitTable): void;
  /** Replaces all faults and sets the number of counted calls to 0. Throws `schema_violation` for an invalid fault. */
  setFaults(faults: readonly FaultInput[]): void;
  /** Resets every connection, ends every call as aborted and closes the ledger file. May be called more than once. */
  close(): Promise<void>;
};

/**
 * Starts a simulated inference server on a loopback port of this process and resolves once it accepts connections. Call `close()`
 * when the test is done. Throws `schema_violation` for invalid settings or scenarios and `setup_failed` when the address is taken.
 *
 * @example
 * const sim = await startSim({ scenarios: await loadScenarios(['scenario.yaml']), scaleOut: true });
 * // point an engine pool at sim.url, run sessions, then compare results with sim.ledger.entries()
 * await sim.close();
 */
export async function startSim(options: SimOptions = {}): Promise<SimServer> {
  const { clock = systemClock, ...input } = options;
  const config = parseAs(simConfigSchema, input, 'simulator settings');
  const context = newContext(config, clock);
  const { engine, ledger, faults, vocabulary, weights, mode } = context;
  const server =
    config.face === 'sglang'
      ? new SimHttpServer({ ...simulatorRoutes(context), ...sglangRoutes(context) }, replySglangError)
      : new SimHttpServer({ ...simulatorRoutes(context), ...vllmRoutes(context) }, replyVllmError);
  let url: string;
  try {
    url = await server.listen(config.host, config.port);
  } catch (reason) {
    ledger.close();
    throw reason;
  }
  return {
    url,
    model: config.model,
    ledger,
    engine,
    oracle: newOracle({ vocabulary, scenarios: engine.options.policy.scenarios, mode, weights }),
    updateWeights: (version, logits) => void weights.update(version, logits),
    setFaults: (list) => faults.set(parseAs(faultListSchema, { faults: list }, 'faults').faults),
    close: async () => {
      await server.close();
      engine.abort();
      await engine.idle();
      ledger.close();
    },
  };
}

function newContext(config: SimConfig, clock: Clock): SimContext {
  const { model, seed, templateMode: mode } = config;
  const vocabulary = bundledVocabulary();
  const policy = new Policy(vocabulary, config.scenarios, mode);
  const weights = new WeightStore(policy.scenarios, config.weightVersion);
  const ledger = new Ledger({ limit: config.ledgerLimit, path: config.ledgerFile });
  const metrics = new VllmMetrics(model);
  const engine = new SimEngine(
    { ...config, vocabulary, policy, weights, ledger, clock },
    {
      onStart: (prompt, cached) => metrics.countPrompt(prompt, cached),
      onTokens: (count) => metrics.countTokens(count),
      onFinish: (reason) => metrics.countFinish(reason),
    },
  );
  metrics.observe(engine);
  return {
    config,
    servedModel: new ServedModel(model),
    engine,
    vocabulary,
    weights,
    ledger,
    faults: new FaultInjector(seed, config.faults),
    metrics,
    toolCallIds: new ToolCallIds(),
    clock,
    mode,
    startedMs: clock.nowMs(),
  };
}

/** The simulator's own routes below `/__sim/`, which no real engine has. They are available on the vLLM API and on the SGLang API. */
function simulatorRoutes({ engine, faults, ledger, vocabulary, weights }: SimContext): RouteTable {
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
    'GET /__sim/choices': (exchange) => {
      const scenario = exchange.url.searchParams.get('scenario');
      const rules = engine.options.policy.scriptedReplies(scenario);
      if (scenario !== null && rules.length === 0) throw new FloeError('not_found', `there is no scenario ${scenario}`);
      exchange.json(200, {
        turn_start_ids: vocabulary.encode(TURN_START),
        rules: rules.map((reply) => ({
          scenario: reply.scenario,
          rule: reply.rule,
          turns: reply.turns.map(({ symbols, picks }) => ({ token_ids: idsOrNull(symbols), picks })),
        })),
      });
    },
  };
}

/** Returns the token ids of a scripted turn, with null where a random thinking token is drawn. */
function idsOrNull(symbols: Int32Array): (number | null)[] {
  return Array.from(symbols, (symbol) => (symbol === NOISE ? null : symbol));
}
