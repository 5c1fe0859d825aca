import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import type { SimEngine } from '../engine.ts';

/** Seconds, from a cached prompt's first token to a long queue. */
const LATENCY_BUCKETS = [0.001, 0.005, 0.02, 0.1, 0.5, 2, 10];

/** Prometheus metrics under SGLang's names. */
export class SglangMetrics {
  private readonly registry = new Registry();
  private readonly labels: { readonly model_name: string };
  private readonly promptTokens: Counter;
  private readonly generationTokens: Counter;
  private readonly cachedTokens: Counter;
  private readonly requests: Counter;
  private readonly aborted: Counter;
  private readonly retracted: Counter;
  private readonly firstToken: Histogram;
  private looked = 0;
  private found = 0;

  constructor(model: string, engine: SimEngine) {
    this.labels = { model_name: model };
    this.promptTokens = this.counter('prompt_tokens_total', 'Prompt tokens processed');
    this.generationTokens = this.counter('generation_tokens_total', 'Tokens sampled');
    this.cachedTokens = this.counter('cached_tokens_total', 'Prompt tokens found in the prefix cache');
    this.requests = this.counter('num_requests_total', 'Requests processed');
    this.aborted = this.counter('num_aborted_requests_total', 'Requests aborted');
    this.retracted = this.counter('num_retracted_requests_total', 'Running requests put back into the queue');
    this.firstToken = new Histogram({
      name: 'sglang:time_to_first_token_seconds',
      help: 'From the request to its first token',
      labelNames: ['model_name'],
      buckets: LATENCY_BUCKETS,
      registers: [this.registry],
    });
    this.gauge('num_running_reqs', 'Requests that hold a slot', () => engine.running);
    this.gauge('num_queue_reqs', 'Requests that wait for a slot', () => engine.waiting);
    this.gauge('token_usage', 'Share of the cache in use', () => engine.cache.size / engine.cache.capacity);
    this.gauge('cache_hit_rate', 'Share of prompt tokens found in the prefix cache', () =>
      this.looked === 0 ? 0 : this.found / this.looked,
    );
  }

  started(promptTokens: number, cachedTokens: number): void {
    this.promptTokens.inc(this.labels, promptTokens);
    this.cachedTokens.inc(this.labels, cachedTokens);
    this.looked += promptTokens;
    this.found += cachedTokens;
  }

  sampled(count: number): void {
    this.generationTokens.inc(this.labels, count);
  }

  firstTokenAfter(ms: number): void {
    this.firstToken.observe(this.labels, ms / 1000);
  }

  finished(aborted: boolean): void {
    this.requests.inc(this.labels);
    if (aborted) this.aborted.inc(this.labels);
  }

  retractedAll(count: number): void {
    this.retracted.inc(this.labels, count);
  }

  text(): Promise<string> {
    return this.registry.metrics();
  }

  private counter(name: string, help: string): Counter {
    const counter = new Counter({
      name: `sglang:${name}`,
      help,
      labelNames: ['model_name'],
      registers: [this.registry],
    });
    counter.inc(this.labels, 0);
    return counter;
  }

  private gauge(name: string, help: string, read: () => number): void {
    const gauge: Gauge = new Gauge({
      name: `sglang:${name}`,
      help,
      labelNames: ['model_name'],
      registers: [this.registry],
      collect: () => gauge.set(this.labels, read()),
    });
  }
}
