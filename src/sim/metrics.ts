import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import type { SimEngine } from './engine.ts';

/** Seconds, from a cached prompt's first token to a long queue. */
const LATENCY_BUCKETS = [0.001, 0.005, 0.02, 0.1, 0.5, 2, 10];

/** Prometheus metrics under vLLM's names. */
export class SimMetrics {
  private readonly registry = new Registry();
  private readonly labels: { readonly model_name: string; readonly engine: string };
  private readonly promptTokens: Counter;
  private readonly generationTokens: Counter;
  private readonly cacheQueries: Counter;
  private readonly cacheHits: Counter;
  private readonly success: Counter;
  private readonly disconnected: Counter;
  private readonly firstToken: Histogram;

  constructor(model: string) {
    this.labels = { model_name: model, engine: '0' };
    this.promptTokens = this.counter('vllm:prompt_tokens_total', 'Prompt tokens processed');
    this.generationTokens = this.counter('vllm:generation_tokens_total', 'Tokens sampled');
    this.cacheQueries = this.counter('vllm:prefix_cache_queries_total', 'Prompt tokens looked up in the prefix cache');
    this.cacheHits = this.counter('vllm:prefix_cache_hits_total', 'Prompt tokens found in the prefix cache');
    this.disconnected = this.counter('vllm:http_requests_client_disconnected_total', 'Requests whose client went away');
    this.counter('vllm:num_preemptions_total', 'Preemptions; the simulator has none');
    this.success = new Counter({
      name: 'vllm:request_success_total',
      help: 'Requests ended, by reason',
      labelNames: ['model_name', 'engine', 'finished_reason'],
      registers: [this.registry],
    });
    this.firstToken = new Histogram({
      name: 'vllm:time_to_first_token_seconds',
      help: 'From the request to its first token',
      labelNames: ['model_name', 'engine'],
      buckets: LATENCY_BUCKETS,
      registers: [this.registry],
    });
  }

  /** Gauges read the engine when they are asked for. */
  watch(engine: SimEngine): void {
    this.gauge('vllm:num_requests_running', 'Requests that hold a slot', () => engine.running);
    this.gauge('vllm:num_requests_waiting', 'Requests that wait for a slot', () => engine.waiting);
    this.gauge(
      'vllm:kv_cache_usage_perc',
      'Share of cache blocks in use',
      () => engine.cache.size / engine.cache.capacity,
    );
    const reasons: Gauge = new Gauge({
      name: 'vllm:num_requests_waiting_by_reason',
      help: 'Requests that wait for a slot, by reason',
      labelNames: ['model_name', 'engine', 'reason'],
      registers: [this.registry],
      collect: () => reasons.set({ ...this.labels, reason: 'capacity' }, engine.waiting),
    });
  }

  started(promptTokens: number, cachedTokens: number): void {
    this.promptTokens.inc(this.labels, promptTokens);
    this.cacheQueries.inc(this.labels, promptTokens);
    this.cacheHits.inc(this.labels, cachedTokens);
  }

  sampled(count: number): void {
    this.generationTokens.inc(this.labels, count);
  }

  firstTokenAfter(ms: number): void {
    this.firstToken.observe(this.labels, ms / 1000);
  }

  finished(reason: string): void {
    this.success.inc({ ...this.labels, finished_reason: reason });
  }

  clientGone(): void {
    this.disconnected.inc(this.labels);
  }

  text(): Promise<string> {
    return this.registry.metrics();
  }

  private counter(name: string, help: string): Counter {
    const counter = new Counter({ name, help, labelNames: ['model_name', 'engine'], registers: [this.registry] });
    counter.inc(this.labels, 0);
    return counter;
  }

  private gauge(name: string, help: string, read: () => number): void {
    const gauge: Gauge = new Gauge({
      name,
      help,
      labelNames: ['model_name', 'engine'],
      registers: [this.registry],
      collect: () => gauge.set(this.labels, read()),
    });
  }
}
