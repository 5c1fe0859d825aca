import { type Clock, systemClock } from '../core/clock.ts';
import { parseAs } from '../core/parse.ts';
import { CallIds } from './call-ids.ts';
import { type SimConfig, type SimConfigInput, simConfigSchema } from './config.ts';
import type { SimContext } from './context.ts';
import { SimEngine } from './engine.ts';
import { FaultInjector, type FaultInput, faultListSchema } from './faults.ts';
import { HttpFace } from './http.ts';
import { Identity } from './identity.ts';
import { Ledger } from './ledger.ts';
import { SimMetrics } from './metrics.ts';
import { newOracle, type Oracle } from './oracle.ts';
import { Policy } from './policy.ts';
import { replySglangError, sglangRoutes } from './sglang/routes.ts';
import { replyVllmError } from './vllm/context.ts';
import { vllmRoutes } from './vllm/routes.ts';
import { bundledVocabulary } from './vocabulary.ts';
import { type LogitTable, WeightStore } from './weights.ts';

/** Plain settings (see {@link simConfigSchema}) and, for tests, the clock that delays run on. */
export type SimOptions = SimConfigInput & { readonly clock?: Clock };

/** A running simulated engine. */
export type SimServer = {
  /** Base URL without `/v1`. */
  readonly url: string;
  readonly model: string;
  readonly ledger: Ledger;
  readonly engine: SimEngine;
  readonly oracle: Oracle;
  /** Puts a weights version in effect at once, in running replies too. Errors: see {@link WeightStore.update}. */
  updateWeights(version: string, logits?: LogitTable): void;
  /** Replaces all faults; counting of calls begins anew. Throws `schema_violation`. */
  setFaults(faults: readonly FaultInput[]): void;
  /** Breaks every connection, ends every call as aborted, closes the ledger. May be called twice. */
  close(): Promise<void>;
};

/** Starts the simulated inference server. Throws `schema_violation` or `setup_failed`. */
export async function startSim(options: SimOptions = {}): Promise<SimServer> {
  const { clock = systemClock, ...input } = options;
  const config = parseAs(simConfigSchema, input, 'simulator settings');
  const context = newContext(config, clock);
  const { engine, ledger, faults, vocabulary, weights, mode } = context;
  const face =
    config.face === 'sglang'
      ? new HttpFace(sglangRoutes(context), replySglangError)
      : new HttpFace(vllmRoutes(context), replyVllmError);
  let url: string;
  try {
    url = await face.listen(config.host, config.port);
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
      await face.close();
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
  const metrics = new SimMetrics(model);
  const engine = new SimEngine(
    { ...config, vocabulary, policy, weights, ledger, clock },
    {
      onStart: (prompt, cached) => metrics.started(prompt, cached),
      onTokens: (count) => metrics.sampled(count),
      onFinish: (reason) => metrics.finished(reason),
    },
  );
  metrics.watch(engine);
  return {
    config,
    identity: new Identity(model),
    engine,
    vocabulary,
    weights,
    ledger,
    faults: new FaultInjector(seed, config.faults),
    metrics,
    callIds: new CallIds(),
    clock,
    mode,
    startedMs: clock.nowMs(),
  };
}
