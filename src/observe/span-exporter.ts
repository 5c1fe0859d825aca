import { request } from 'undici';
import type { Clock } from '../core/clock.ts';
import { asFloeError } from '../core/errors.ts';
import type { SpanAttributes } from '../core/tracing.ts';
import type { Logger } from './log.ts';
import { otlpRequest } from './otlp.ts';
import type { FinishedSpan } from './recording-tracer.ts';

/** A collector wants few large requests; people who look at a trace do not want to wait. */
const EXPORT_EVERY_MS = 2_000;
const BATCH_SPANS = 512;
/** Beyond this a collector is away for long; memory is worth more than its spans. About 4 MB. */
const MAX_WAITING_SPANS = 8_192;
/** A process that closes waits for it. */
const TIMEOUT_MS = 5_000;

export type SpanExporterOptions = {
  /** Where spans go: the whole address, path included. */
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  /** Which process they are of. */
  readonly resource: SpanAttributes;
  readonly clock: Clock;
  readonly log: Logger;
};

/**
 * Sends spans to an OpenTelemetry collector, some at a time. A batch that the collector does not take is tried again with the
 * next ones, as long as there is room; what there is no room for is dropped and counted, since work never waits for its traces.
 */
export class SpanExporter {
  private readonly options: SpanExporterOptions;
  private waiting: FinishedSpan[] = [];
  private sending: Promise<void> | null = null;
  private cancelTimer: (() => void) | null = null;
  /** The last try failed. */
  private failing = false;
  private dropped = 0;
  private closed = false;

  constructor(options: SpanExporterOptions) {
    this.options = options;
  }

  /** Spans that were given up. */
  get droppedCount(): number {
    return this.dropped;
  }

  add(span: FinishedSpan): void {
    if (this.closed || this.waiting.length >= MAX_WAITING_SPANS) {
      this.dropped++;
      return;
    }
    this.waiting.push(span);
    if (this.waiting.length >= BATCH_SPANS && !this.failing) this.sendSoon(0);
    else this.cancelTimer ??= this.options.clock.schedule(EXPORT_EVERY_MS, () => this.send());
  }

  /** Sends what waits, once, and takes no more. */
  async close(): Promise<void> {
    this.closed = true;
    this.cancelTimer?.();
    await this.sending;
    await this.sendAll();
    this.dropped += this.waiting.length;
    this.waiting = [];
  }

  private sendSoon(delayMs: number): void {
    if (this.sending !== null) return;
    this.cancelTimer?.();
    this.cancelTimer = this.options.clock.schedule(delayMs, () => this.send());
  }

  private send(): void {
    this.cancelTimer = null;
    this.sending ??= this.sendAll().finally(() => {
      this.sending = null;
      if (this.waiting.length > 0 && !this.closed) this.sendSoon(EXPORT_EVERY_MS);
    });
  }

  private async sendAll(): Promise<void> {
    while (this.waiting.length > 0) {
      const batch = this.waiting.splice(0, BATCH_SPANS);
      const refused = await this.post(batch);
      this.tellHealth(refused);
      if (refused === null) continue;
      this.keep(batch);
      return;
    }
  }

  /** Once for each change, not with every try. */
  private tellHealth(problem: string | null): void {
    const { log } = this.options;
    // What else an address may hold is nobody's business.
    const url = new URL(this.options.url).origin;
    if (problem !== null && !this.failing) log.warn({ url, error: problem }, 'the trace collector takes no spans');
    if (problem === null && this.failing)
      log.info({ url, dropped: this.dropped }, 'the trace collector takes spans again');
    this.failing = problem !== null;
  }

  private keep(batch: FinishedSpan[]): void {
    const room = MAX_WAITING_SPANS - this.waiting.length;
    this.dropped += Math.max(0, batch.length - room);
    this.waiting = [...batch.slice(0, room), ...this.waiting];
  }

  /** Null when the collector has the batch; otherwise why not. */
  private async post(batch: readonly FinishedSpan[]): Promise<string | null> {
    const { url, headers, resource, clock } = this.options;
    const deadline = new AbortController();
    const cancel = clock.schedule(TIMEOUT_MS, () => deadline.abort(new Error(`no answer within ${TIMEOUT_MS} ms`)));
    try {
      const reply = await request(url, {
        method: 'POST',
        headers: { ...headers, 'content-type': 'application/json' },
        body: JSON.stringify(otlpRequest(resource, batch)),
        signal: deadline.signal,
      });
      await reply.body.dump();
      return reply.statusCode >= 200 && reply.statusCode < 300 ? null : `it answered with status ${reply.statusCode}`;
    } catch (thrown) {
      return asFloeError(thrown, 'peer_unreachable').message;
    } finally {
      cancel();
    }
  }
}
