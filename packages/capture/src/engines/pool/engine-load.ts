import { parseSample } from './exposition.ts';

/** How busy an inference server is, as its metrics state it. A value is `null` when the server does not report a plausible one. */
export type EngineLoad = {
  /** Share of the KV cache in use, 0 to 1. */
  readonly kvUsage: number | null;
  readonly running: number | null;
  /** Number of requests that wait for a place in the batch. */
  readonly waiting: number | null;
  /** Number of requests since the server's start that lost their place in the batch because the KV cache was full. */
  readonly preemptions: number | null;
};

type Field = { readonly key: keyof EngineLoad; readonly max: number };

const SHARE = 1;
/** Highest plausible number of requests. No server has a million requests at a time. */
const REQUESTS = 1_000_000;
const COUNTER = Number.MAX_SAFE_INTEGER;

/** The metrics of vLLM, SGLang and llama.cpp's server that state their load. */
const FIELDS: ReadonlyMap<string, Field> = new Map([
  ['vllm:kv_cache_usage_perc', { key: 'kvUsage', max: SHARE }],
  ['vllm:num_requests_running', { key: 'running', max: REQUESTS }],
  ['vllm:num_requests_waiting', { key: 'waiting', max: REQUESTS }],
  ['vllm:num_preemptions_total', { key: 'preemptions', max: COUNTER }],
  ['sglang:token_usage', { key: 'kvUsage', max: SHARE }],
  ['sglang:num_running_reqs', { key: 'running', max: REQUESTS }],
  ['sglang:num_queue_reqs', { key: 'waiting', max: REQUESTS }],
  ['sglang:num_retracted_requests_total', { key: 'preemptions', max: COUNTER }],
  ['llamacpp:kv_cache_usage_ratio', { key: 'kvUsage', max: SHARE }],
  ['llamacpp:requests_processing', { key: 'running', max: REQUESTS }],
  ['llamacpp:requests_deferred', { key: 'waiting', max: REQUESTS }],
]);

/**
 * Reads the load of a server from its metrics in Prometheus text. Of a server with several data-parallel engines, the fullest KV cache counts,
 * and the sums of the other values. A value that is negative, not a number or implausibly large is `null`.
 */
export function loadOf(text: string): EngineLoad {
  const values: Record<keyof EngineLoad, number[]> = { kvUsage: [], running: [], waiting: [], preemptions: [] };
  const limits: Partial<Record<keyof EngineLoad, number>> = {};
  for (const line of text.split('\n')) {
    const field = FIELDS.get(line.slice(0, line.search(/[{\s]|$/)));
    if (field === undefined) continue;
    values[field.key].push(Number(parseSample(line.trimEnd())?.value ?? Number.NaN));
    limits[field.key] = field.max;
  }
  const read = (key: keyof EngineLoad, combine: (all: readonly number[]) => number): number | null => {
    const value = combine(values[key]);
    return values[key].length > 0 && values[key].every((one) => one >= 0) && value <= (limits[key] ?? 0) ? value : null;
  };
  const sum = (all: readonly number[]): number => all.reduce((total, one) => total + one, 0);
  return {
    kvUsage: read('kvUsage', (all) => Math.max(...all)),
    running: read('running', sum),
    waiting: read('waiting', sum),
    preemptions: read('preemptions', sum),
  };
}
