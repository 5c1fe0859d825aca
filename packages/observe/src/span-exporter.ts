import { asFloeError, type Clock, type SpanAttributes, type SpanKind } from '@floe-rl/core';
import { callHttpStatus } from '@floe-rl/core/http';
import type { Logger } from './log.ts';

/**
 * Interval at which finished spans are sent, ms. A collector handles few large requests best, but a user who opens a trace should see its
 * last spans soon.
 */
const EXPORT_INTERVAL_MS = 2_000;
const BATCH_SPANS = 512;
/**
 * Maximum number of spans that wait in memory, about 4 MB. Once the queue is full, because the collector has been unreachable for long,
 * further spans are dropped.
 */
const MAX_QUEUED_SPANS = 8_192;
/** Longest wait for the collector's reply to an export, ms. It also limits how long a closing process waits for its last batch of spans. */
const EXPORT_TIMEOUT_MS = 5_000;

/** A span that has ended. Its times are Unix milliseconds. */
export type FinishedSpan = {
  readonly traceId: string;
  readonly spanId: string;
  /** Id of the parent span; `null` for the root span of a trace. */
  readonly parentSpanId: string | null;
  readonly name: string;
  readonly kind: SpanKind;
  readonly startMs: number;
  readonly endMs: number;
  readonly attributes: SpanAttributes;
  /** Message of the failure that ended the span; `null` after success. */
  readonly error: string | null;
};

type SpanExporterOptions = {
  /** The full URL of the OpenTelemetry collector, path included. */
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  /** Attributes that describe the process that records the spans. */
  readonly resource: SpanAttributes;
  readonly clock: Clock;
  readonly log: Logger;
};

/**
 * Sends spans in batches to an OpenTelemetry collector. A batch that the collector does not accept is sent once more with the next batch,
 * as long as the queue has capacity. Spans beyond that capacity are dropped and counted, because sessions never wait for their traces.
 * docs/decisions/observing.md#17-spans-are-recorded-and-sent-without-opentelemetrys-sdk explains why OpenTelemetry's SDK is not used.
 */
export class SpanExporter {
  private readonly options: SpanExporterOptions;
  private queue: FinishedSpan[] = [];
  private sending: Promise<void> | null = null;
  private cancelTimer: (() => void) | null = null;
  /** Whether the last export of spans failed. */
  private failing = false;
  private dropped = 0;
  private closed = false;

  constructor(options: SpanExporterOptions) {
    this.options = options;
  }

  /** Number of spans that were dropped instead of being sent. */
  get droppedCount(): number {
    return this.dropped;
  }

  add(span: FinishedSpan): void {
    if (this.closed || this.queue.length >= MAX_QUEUED_SPANS) {
      this.dropped++;
      return;
    }
    this.queue.push(span);
    if (this.queue.length >= BATCH_SPANS && !this.failing) this.scheduleSend(0);
    else this.cancelTimer ??= this.options.clock.schedule(EXPORT_INTERVAL_MS, () => this.send());
  }

  /** Sends the queued spans once and accepts no further spans. */
  async close(): Promise<void> {
    this.closed = true;
    this.cancelTimer?.();
    await this.sending;
    await this.sendQueue();
    this.dropped += this.queue.length;
    this.queue = [];
  }

  private scheduleSend(delayMs: number): void {
    if (this.sending !== null) return;
    this.cancelTimer?.();
    this.cancelTimer = this.options.clock.schedule(delayMs, () => this.send());
  }

  private send(): void {
    this.cancelTimer = null;
    this.sending ??= this.sendQueue().finally(() => {
      this.sending = null;
      if (this.queue.length > 0 && !this.closed) this.scheduleSend(EXPORT_INTERVAL_MS);
    });
  }

  private async sendQueue(): Promise<void> {
    while (this.queue.length > 0) {
      const batch = this.queue.splice(0, BATCH_SPANS);
      const problem = await this.post(batch);
      this.logChange(problem);
      if (problem === null) continue;
      this.requeue(batch);
      return;
    }
  }

  /** Logs when exports start to fail and when they succeed again. Further failures in between are not logged. */
  private logChange(problem: string | null): void {
    const { log } = this.options;
    // Only the origin of the collector's URL is logged, because the rest of the URL may contain secrets.
    const url = new URL(this.options.url).origin;
    if (problem !== null && !this.failing) {
      log.warn({ url, error: problem }, 'the trace collector does not accept spans; they wait in memory');
    }
    if (problem === null && this.failing) {
      log.info({ url, dropped: this.dropped }, 'the trace collector accepts spans again');
    }
    this.failing = problem !== null;
  }

  private requeue(batch: FinishedSpan[]): void {
    const capacity = MAX_QUEUED_SPANS - this.queue.length;
    this.dropped += Math.max(0, batch.length - capacity);
    this.queue = [...batch.slice(0, capacity), ...this.queue];
  }

  /** Sends one batch of spans. Returns the reason why the collector did not accept it; `null` when it did. */
  private async post(batch: readonly FinishedSpan[]): Promise<string | null> {
    const { url, headers, resource, clock } = this.options;
    const request = {
      method: 'POST',
      headers: { ...headers, 'content-type': 'application/json' },
      body: JSON.stringify(exportRequest(resource, batch)),
    } as const;
    const late = () => new Error(`no reply within ${EXPORT_TIMEOUT_MS} ms`);
    try {
      const status = await callHttpStatus(url, request, { clock, limitMs: EXPORT_TIMEOUT_MS, late });
      return status >= 200 && status < 300 ? null : `it replied with status ${status}`;
    } catch (thrown) {
      return asFloeError(thrown, 'peer_unreachable').message;
    }
  }
}

/** Numbers of the values of OTLP's enumeration `SpanKind`. */
const OTLP_KINDS = { internal: 1, client: 3 } as const;
/** Number of OTLP's status `STATUS_CODE_ERROR`. */
const OTLP_STATUS_ERROR = 2;

const NANOS_PER_MS = 1_000_000n;

/** Returns an `ExportTraceServiceRequest` of OTLP 1.x in its JSON form. `resource` describes the process that recorded the spans. */
function exportRequest(resource: SpanAttributes, spans: readonly FinishedSpan[]): object {
  return {
    resourceSpans: [
      {
        resource: { attributes: keyValues(resource) },
        scopeSpans: [{ scope: { name: 'floe' }, spans: spans.map(otlpSpan) }],
      },
    ],
  };
}

function otlpSpan(span: FinishedSpan): object {
  return {
    traceId: span.traceId,
    spanId: span.spanId,
    ...(span.parentSpanId === null ? {} : { parentSpanId: span.parentSpanId }),
    name: span.name,
    kind: OTLP_KINDS[span.kind],
    startTimeUnixNano: nanos(span.startMs),
    endTimeUnixNano: nanos(span.endMs),
    attributes: keyValues(span.attributes),
    ...(span.error === null ? {} : { status: { code: OTLP_STATUS_ERROR, message: span.error } }),
  };
}

/**
 * Converts milliseconds to nanoseconds as a string: OTLP's JSON writes 64-bit integers as strings, because a number above 2^53 would lose
 * its last digits.
 */
function nanos(ms: number): string {
  const whole = Math.floor(ms);
  return String(BigInt(whole) * NANOS_PER_MS + BigInt(Math.floor((ms - whole) * Number(NANOS_PER_MS))));
}

function keyValues(attributes: SpanAttributes): object[] {
  return Object.entries(attributes).flatMap(([key, value]) =>
    value === null ? [] : [{ key, value: anyValue(value) }],
  );
}

function anyValue(value: string | number | boolean): object {
  if (typeof value === 'string') return { stringValue: value };
  if (typeof value === 'boolean') return { boolValue: value };
  return Number.isSafeInteger(value) ? { intValue: String(value) } : { doubleValue: value };
}
