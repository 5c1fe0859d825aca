import { randomBytes } from 'node:crypto';
import {
  type Clock,
  FloeError,
  formatTraceparent,
  parseTraceparent,
  passThroughSpan,
  passThroughTracer,
  type Span,
  type SpanAttributes,
  type SpanKind,
  type SpanOrigin,
  type TraceContext,
  type Tracer,
  traceIdOf,
} from '@floe-rl/core';
import type { Logger } from './log.ts';
import { type FinishedSpan, SpanExporter } from './span-exporter.ts';

type Tracing = {
  readonly tracer: Tracer;
  /** Sends the spans that have ended, and stops the exporter. */
  close(): Promise<void>;
};

type Environment = Readonly<Record<string, string | undefined>>;

const NO_TRACING: Tracing = { tracer: passThroughTracer, close: async () => {} };

/**
 * Sets up tracing from OpenTelemetry's environment variables. With `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`,
 * spans are sent to that collector. Without these, no span is recorded and traceparents are only passed on. `OTEL_SERVICE_NAME` overrides
 * `service`, the name of this process. Throws `setup_failed` for an invalid URL or header.
 */
export function tracingFromEnvironment(
  environment: Environment,
  service: string,
  attributes: SpanAttributes,
  { clock, log }: { readonly clock: Clock; readonly log: Logger },
): Tracing {
  const url = collectorUrl(environment);
  if (url === null) return NO_TRACING;
  const resource = { 'service.name': environment.OTEL_SERVICE_NAME || service, ...attributes };
  const exporter = new SpanExporter({ url, headers: collectorHeaders(environment), resource, clock, log });
  return {
    tracer: recordingTracer(clock, (span) => exporter.add(span)),
    close: () => exporter.close(),
  };
}

/** Returns the URL to which spans are sent; `null` when none is configured. */
function collectorUrl(environment: Environment): string | null {
  for (const [name, path] of [
    ['OTEL_EXPORTER_OTLP_TRACES_ENDPOINT', ''],
    ['OTEL_EXPORTER_OTLP_ENDPOINT', '/v1/traces'],
  ] as const) {
    const text = environment[name];
    if (text === undefined || text === '') continue;
    const url = URL.canParse(text) ? new URL(text) : null;
    if (url?.protocol !== 'http:' && url?.protocol !== 'https:') {
      throw new FloeError('setup_failed', `${name}: ${text} is not an http address`);
    }
    return text.replace(/\/+$/, '') + path;
  }
  return null;
}

/** Parses the HTTP headers for the collector: comma-separated `name=value` pairs whose values are percent-encoded. */
function collectorHeaders(environment: Environment): Record<string, string> {
  const name = 'OTEL_EXPORTER_OTLP_HEADERS';
  const entries = (environment[name] ?? '').split(',').filter((entry) => entry.trim() !== '');
  return Object.fromEntries(
    entries.map((entry) => {
      const at = entry.indexOf('=');
      const key = entry.slice(0, at).trim().toLowerCase();
      // The error message does not show the entry of the variable, because its value may be a secret.
      if (at < 1 || !/^[!#$%&'*+.^_`|~0-9a-z-]+$/.test(key)) {
        throw new FloeError('setup_failed', `${name}: every entry must be name=value`);
      }
      return [key, decodeValue(name, entry.slice(at + 1).trim())];
    }),
  );
}

function decodeValue(name: string, text: string): string {
  try {
    return decodeURIComponent(text);
  } catch (cause) {
    throw new FloeError('setup_failed', `${name}: a value is not percent-encoded`, {}, cause);
  }
}

/** Receives every span that ends. Must not throw. */
type SpanSink = (span: FinishedSpan) => void;

/** Maximum number of characters of a span's error message. Longer messages are cut. */
const MAX_ERROR_CHARS = 1_000;

/** Creates a tracer that records all spans, except spans of a trace that its submitter marked as not sampled. */
export function recordingTracer(clock: Clock, sink: SpanSink): Tracer {
  return {
    start(name: string, { parent, id }: SpanOrigin, attributes: SpanAttributes, kind: SpanKind = 'internal'): Span {
      const parentContext = parent === null ? null : parseTraceparent(parent);
      if (parentContext !== null && !parentContext.sampled) return passThroughSpan(parent);
      const offsetMs = clock.nowMs() - clock.monotonicMs();
      const nowMs = (): number => offsetMs + clock.monotonicMs();
      const traceId = parentContext?.traceId ?? traceIdOf(id);
      return new RecordedSpan(
        nowMs,
        sink,
        { traceId, parentSpanId: parentContext?.spanId ?? null, name, kind },
        attributes,
      );
    },
  };
}

type SpanNames = Pick<FinishedSpan, 'traceId' | 'parentSpanId' | 'name' | 'kind'>;

class RecordedSpan implements Span {
  readonly traceparent: string;
  private readonly context: TraceContext;
  private readonly nowMs: () => number;
  private readonly sink: SpanSink;
  private readonly names: SpanNames;
  private readonly startMs: number;
  private attributes: SpanAttributes;
  private ended = false;

  /**
   * Starts a span. `nowMs` returns Unix time in milliseconds, which must not jump within one tree of spans even when the wall clock does.
   */
  constructor(nowMs: () => number, sink: SpanSink, names: SpanNames, attributes: SpanAttributes) {
    this.nowMs = nowMs;
    this.sink = sink;
    this.names = names;
    this.attributes = attributes;
    this.startMs = nowMs();
    this.context = { traceId: names.traceId, spanId: randomBytes(8).toString('hex'), sampled: true };
    this.traceparent = formatTraceparent(this.context);
  }

  child(name: string, attributes: SpanAttributes = {}, kind: SpanKind = 'internal'): Span {
    const { traceId, spanId } = this.context;
    return new RecordedSpan(this.nowMs, this.sink, { traceId, parentSpanId: spanId, name, kind }, attributes);
  }

  set(attributes: SpanAttributes): void {
    this.attributes = { ...this.attributes, ...attributes };
  }

  end(error: string | null = null): void {
    if (this.ended) return;
    this.ended = true;
    const { names, startMs, attributes } = this;
    const { spanId } = this.context;
    const message = error === null ? null : error.slice(0, MAX_ERROR_CHARS);
    this.sink({ ...names, spanId, startMs, endMs: this.nowMs(), attributes, error: message });
  }
}
