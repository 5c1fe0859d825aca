import { type Clock, systemClock } from '../core/clock.ts';
import { parseAs } from '../core/parse.ts';
import { SimEngine } from './engine.ts';
import { FaultInjector, type FaultInput, faultListSchema } from './faults.ts';
import { HttpFace } from './http.ts';
import { Ledger } from './ledger.ts';
import { SimMetrics } from './metrics.ts';
import { newOracle, type Oracle } from './oracle.ts';
import { Policy } from './policy.ts';
import { type ScenarioInput, scenarioListSchema } from './scenario.ts';
import type { TemplateMode } from './template.ts';
import { type LogprobsMode, replyVllmError, type VllmContext } from './vllm/context.ts';
import type { GenerationConfig } from './vllm/request.ts';
import { vllmRoutes } from './vllm/routes.ts';
import { bundledVocabulary } from './vocabulary.ts';
import { type LogitTable, WeightStore } from './weights.ts';

export type SimOptions = {
  /** From {@link loadScenarios} or written in place; the built-in default answers what they do not cover. */
  readonly scenarios?: readonly ScenarioInput[];
  /** Default 127.0.0.1; the server has no authentication. */
  readonly host?: string;
  /** Default 0: any free port. */
  readonly port?: number;
  readonly model?: string;
  readonly templateMode?: TemplateMode;
  /** What reported logprobs mean; default `processed_logprobs`. */
  readonly logprobsMode?: LogprobsMode;
  readonly generationConfig?: GenerationConfig;
  readonly maxModelLen?: number;
  readonly maxNumSeqs?: number;
  readonly tokenDelayMs?: number;
  readonly firstTokenDelayMs?: number;
  readonly streamInterval?: number;
  readonly seed?: number;
  readonly weightVersion?: string;
  readonly reportVersions?: boolean;
  readonly reportCachedTokens?: boolean;
  readonly faults?: readonly FaultInput[];
  readonly ledgerLimit?: number;
  readonly ledgerPath?: string;
  readonly clock?: Clock;
};

/** A test run's worth of calls; with 10,000 ids each, about 200 MB. */
const DEFAULT_LEDGER_LIMIT = 2_000;
const DEFAULT_MAX_MODEL_LEN = 32_768;
/** vLLM's default on large GPUs. */
const DEFAULT_MAX_NUM_SEQS = 256;
/** 512 k tokens of cache. */
const CACHE_BLOCKS = 32_768;

/** A running simulated engine. */
export type SimServer = {
  /** Base URL without `/v1`. */
  readonly url: string;
  readonly model: string;
  readonly ledger: Ledger;
  readonly engine: SimEngine;
  readonly oracle: Oracle;
  /** Puts a weights version in effect at once, in running replies too. See {@link WeightStore.update}. */
  updateWeights(version: string, logits?: LogitTable): void;
  /** Replaces all faults; counting of calls begins anew. Throws `schema_violation`. */
  setFaults(faults: readonly FaultInput[]): void;
  /** Breaks every connection, ends every call as aborted, closes the ledger. May be called twice. */
  close(): Promise<void>;
};

/** Starts the simulated inference server with vLLM's face. Throws `schema_violation` or `setup_failed`. */
export async function startSim(options: SimOptions = {}): Promise<SimServer> {
  const clock = options.clock ?? systemClock;
  const model = options.model ?? 'floe-sim';
  const seed = options.seed ?? 0;
  const mode = options.templateMode ?? 'append_only';
  const vocabulary = bundledVocabulary();
  const policy = new Policy(vocabulary, parseAs(scenarioListSchema, options.scenarios ?? [], 'scenarios'), mode);
  const weights = new WeightStore(policy.scenarios, options.weightVersion ?? 'v0');
  const faults = new FaultInjector(seed, parseFaults(options.faults ?? []));
  const ledger = new Ledger({ limit: options.ledgerLimit ?? DEFAULT_LEDGER_LIMIT, path: options.ledgerPath });
  const metrics = new SimMetrics(model);
  const engine = new SimEngine(
    {
      vocabulary,
      policy,
      weights,
      ledger,
      clock,
      seed,
      maxModelLen: options.maxModelLen ?? DEFAULT_MAX_MODEL_LEN,
      maxNumSeqs: options.maxNumSeqs ?? DEFAULT_MAX_NUM_SEQS,
      firstTokenDelayMs: options.firstTokenDelayMs ?? 0,
      tokenDelayMs: options.tokenDelayMs ?? 0,
      cacheBlocks: CACHE_BLOCKS,
    },
    {
      onStart: (prompt, cached) => metrics.started(prompt, cached),
      onTokens: (count) => metrics.sampled(count),
      onFinish: (reason) => metrics.finished(reason),
    },
  );
  metrics.watch(engine);
  const context: VllmContext = {
    engine,
    vocabulary,
    weights,
    ledger,
    faults,
    metrics,
    clock,
    model,
    mode,
    logprobsMode: options.logprobsMode ?? 'processed_logprobs',
    generationConfig: options.generationConfig ?? {},
    reportVersions: options.reportVersions ?? true,
    reportCachedTokens: options.reportCachedTokens ?? true,
    streamInterval: options.streamInterval ?? 1,
    startedMs: clock.nowMs(),
  };
  const face = new HttpFace(vllmRoutes(context), replyVllmError);
  const url = await face.listen(options.host ?? '127.0.0.1', options.port ?? 0);
  return {
    url,
    model,
    ledger,
    engine,
    oracle: newOracle({ vocabulary, scenarios: policy.scenarios, mode, weights }),
    updateWeights: (version, logits) => void weights.update(version, logits),
    setFaults: (list) => faults.set(parseFaults(list)),
    close: async () => {
      await face.close();
      engine.abort();
      engine.resume();
      await engine.idle();
      ledger.close();
    },
  };
}

function parseFaults(faults: readonly FaultInput[]): ReturnType<typeof faultListSchema.parse>['faults'] {
  return parseAs(faultListSchema, { faults }, 'faults').faults;
}
