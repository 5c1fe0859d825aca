import { randomBytes } from 'node:crypto';
import type { Clock } from '../core/clock.ts';
import {
  formatTraceparent,
  parseTraceparent,
  passThroughSpan,
  type Span,
  type SpanAttributes,
  type SpanKind,
  type SpanOrigin,
  type TraceContext,
  type Tracer,
  traceIdOf,
} from '../core/tracing.ts';

/** A span that has ended. Times are Unix milliseconds. */
export type FinishedSpan = {
  readonly traceId: string;
  readonly spanId: string;
  /** Null: the top of its trace. */
  readonly parentSpanId: string | null;
  readonly name: string;
  readonly kind: SpanKind;
  readonly startMs: number;
  readonly endMs: number;
  readonly attributes: SpanAttributes;
  /** Null: it went well. */
  readonly error: string | null;
};

/** Hears of every span that ends. Must not throw. */
export type SpanSink = (span: FinishedSpan) => void;

/** Of an error's text: what a person reads of it in a list. */
const MAX_ERROR_CHARS = 1_000;

/** Records what its callers' traces ask for: everything but what a submitter marked as not sampled. */
export function recordingTracer(clock: Clock, sink: SpanSink): Tracer {
  return {
    start(name: string, { parent, id }: SpanOrigin, attributes: SpanAttributes, kind: SpanKind = 'internal'): Span {
      const above = parent === null ? null : parseTraceparent(parent);
      if (above !== null && !above.sampled) return passThroughSpan(parent);
      const offsetMs = clock.nowMs() - clock.monotonicMs();
      const nowMs = (): number => offsetMs + clock.monotonicMs();
      const traceId = above?.traceId ?? traceIdOf(id);
      return new RecordedSpan(nowMs, sink, { traceId, parentSpanId: above?.spanId ?? null, name, kind }, attributes);
    },
  };
}

type Names = Pick<FinishedSpan, 'traceId' | 'parentSpanId' | 'name' | 'kind'>;

class RecordedSpan implements Span {
  readonly traceparent: string;
  private readonly context: TraceContext;
  private readonly nowMs: () => number;
  private readonly sink: SpanSink;
  private readonly names: Names;
  private readonly startMs: number;
  private attributes: SpanAttributes;
  private ended = false;

  /** `nowMs`: Unix time that never jumps within one trace's part in this process, whatever the wall clock does. */
  constructor(nowMs: () => number, sink: SpanSink, names: Names, attributes: SpanAttributes) {
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
    const told = error === null ? null : error.slice(0, MAX_ERROR_CHARS);
    this.sink({ ...names, spanId, startMs, endMs: this.nowMs(), attributes, error: told });
  }
}
