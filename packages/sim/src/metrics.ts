import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import type { SimEngine } from './engine.ts';

/**
 * Upper bounds of the latency histogram's buckets in seconds. The lowest suits the first token after a cached prompt, the highest a long
 * wait in the queue.
 */
const LATENCY_BUCKETS_S = [0.001, 0.005, 0.02, 0.1, 0.5, 2, 10];

type Labels = Readonly<Record<string, string>>;

/** The Prometheus metrics of one server. All names begin with `prefix`, and all metrics carry `labels`. */
class MetricSet {
  readonly registry = new Registry();
  private readonly prefix: string;
  private readonly labels: Labels;

  constructor(prefix: string, labels: Labels) {
    this.prefix = prefix;
    this.labels = labels;
  }

  /** Creates a counter that is exported as 0 before its first increment. */
  counter(name: string, help: string): Counter {
    const counter = new Counter(this.options(name, help));
    counter.inc(this.labels, 0);
    return counter;
  }

  /** Adds a gauge whose value `read` supplies when the metrics are scraped. */
  gauge(name: string, help: string, read: () => number, extraLabels: Labels = {}): void {
    const gauge: Gauge = new Gauge({
      ...this.options(name, help, Object.keys(extraLabels)),
      collect: () => gauge.set({ ...this.labels, ...extraLabels }, read()),
    });
  }

  latencyHistogram(name: string, help: string): Histogram {
    return new Histogram({ ...this.options(name, help), buckets: LATENCY_BUCKETS_S });
  }

  options(name: string, help: string, extraLabels: readonly string[] = []) {
    const labelNames = [...Object.keys(this.labels), ...extraLabels];
    return { name: `${this.prefix}${name}`, help, labelNames, registers: [this.registry] };
  }
}

/** The server's Prometheus metrics with vLLM's names. */
export class VllmMetrics {
  private readonly set: MetricSet;
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
    this.set = new MetricSet('vllm:', this.labels);
    this.promptTokens = this.set.counter('prompt_tokens_total', 'Prompt tokens processed');
    this.generationTokens = this.set.counter('generation_tokens_total', 'Tokens sampled');
    this.cacheQueries = this.set.counter('prefix_cache_queries_total', 'Prompt tokens looked up in the prefix cache');
    this.cacheHits = this.set.counter('prefix_cache_hits_total', 'Prompt tokens found in the prefix cache');
    this.disconnected = this.set.counter(
      'http_requests_client_disconnected_total',
      'Requests whose client disconnected before the reply was complete',
    );
    this.set.counter('num_preemptions_total', 'Preemptions; always 0 in the simulator');
    this.success = new Counter(
      this.set.options('request_success_total', 'Requests ended, by reason', ['finished_reason']),
    );
    this.firstToken = this.set.latencyHistogram('time_to_first_token_seconds', 'From the request to its first token');
  }

  /** Adds the gauges whose values are read from `engine`. */
  observe(engine: SimEngine): void {
    this.set.gauge('num_requests_running', 'Requests that hold a slot', () => engine.running);
    this.set.gauge('num_requests_waiting', 'Requests that wait for a slot', () => engine.waiting);
    this.set.gauge(
      'kv_cache_usage_perc',
      'Share of cache blocks in use',
      () => engine.cache.size / engine.cache.capacity,
    );
    this.set.gauge('num_requests_waiting_by_reason', 'Requests that wait for a slot, by reason', () => engine.waiting, {
      reason: 'capacity',
    });
  }

  countPrompt(promptTokens: number, cachedTokens: number): void {
    this.promptTokens.inc(this.labels, promptTokens);
    this.cacheQueries.inc(this.labels, promptTokens);
    this.cacheHits.inc(this.labels, cachedTokens);
  }

  countTokens(count: number): void {
    this.generationTokens.inc(this.labels, count);
  }

  observeFirstToken(latencyMs: number): void {
    this.firstToken.observe(this.labels, latencyMs / 1000);
  }

  countFinish(reason: string): void {
    this.success.inc({ ...this.labels, finished_reason: reason });
  }

  countDisconnect(): void {
    this.disconnected.inc(this.labels);
  }

  /** Returns the metrics in Prometheus' text format. */
  text(): Promise<string> {
    return this.set.registry.metrics();
  }
}

/** The server's Prometheus metrics with SGLang's names. */
export class SglangMetrics {
  private readonly set: MetricSet;
  private readonly labels: { readonly model_name: string };
  private readonly promptTokens: Counter;
  private readonly generationTokens: Counter;
  private readonly cachedTokens: Counter;
  private readonly requests: Counter;
  private readonly aborted: Counter;
  private readonly retracted: Counter;
  private readonly firstToken: Histogram;
  private promptTokenCount = 0;
  private cachedTokenCount = 0;

  constructor(model: string, engine: SimEngine) {
    this.labels = { model_name: model };
    this.set = new MetricSet('sglang:', this.labels);
    this.promptTokens = this.set.counter('prompt_tokens_total', 'Prompt tokens processed');
    this.generationTokens = this.set.counter('generation_tokens_total', 'Tokens sampled');
    this.cachedTokens = this.set.counter('cached_tokens_total', 'Prompt tokens found in the prefix cache');
    this.requests = this.set.counter('num_requests_total', 'Requests processed');
    this.aborted = this.set.counter('num_aborted_requests_total', 'Requests aborted');
    this.retracted = this.set.counter('num_retracted_requests_total', 'Running requests put back into the queue');
    this.firstToken = this.set.latencyHistogram('time_to_first_token_seconds', 'From the request to its first token');
    this.set.gauge('num_running_reqs', 'Requests that hold a slot', () => engine.running);
    this.set.gauge('num_queue_reqs', 'Requests that wait for a slot', () => engine.waiting);
    this.set.gauge('token_usage', 'Share of the cache in use', () => engine.cache.size / engine.cache.capacity);
    this.set.gauge('cache_hit_rate', 'Share of prompt tokens found in the prefix cache', () =>
      this.promptTokenCount === 0 ? 0 : this.cachedTokenCount / this.promptTokenCount,
    );
  }

  countPrompt(promptTokens: number, cachedTokens: number): void {
    this.promptTokens.inc(this.labels, promptTokens);
    this.cachedTokens.inc(this.labels, cachedTokens);
    this.promptTokenCount += promptTokens;
    this.cachedTokenCount += cachedTokens;
  }

  countTokens(count: number): void {
    this.generationTokens.inc(this.labels, count);
  }

  observeFirstToken(latencyMs: number): void {
    this.firstToken.observe(this.labels, latencyMs / 1000);
  }

  countFinish(aborted: boolean): void {
    this.requests.inc(this.labels);
    if (aborted) this.aborted.inc(this.labels);
  }

  /** Adds `count` to the number of running requests that pauses have put back into the queue. */
  countRetractions(count: number): void {
    this.retracted.inc(this.labels, count);
  }

  /** Returns the metrics in Prometheus' text format. */
  text(): Promise<string> {
    return this.set.registry.metrics();
  }
}
