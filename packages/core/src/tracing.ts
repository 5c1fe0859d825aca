import { createHash } from 'node:crypto';
import { messageOf } from './thrown.ts';

/** The content of a W3C traceparent (`00-<trace id>-<span id>-<flags>`). Both ids are hexadecimal. */
export type TraceContext = { readonly traceId: string; readonly spanId: string; readonly sampled: boolean };

/** Matches a traceparent of any version. Later versions may append fields; version 00 may not. */
const TRACEPARENT = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;
const SAMPLED_BIT = 1;
const TRACE_ID_CHARS = 32;

/** Parses a traceparent. Returns `null` when `text` is not a valid traceparent, which is not an error: the caller then has no trace. */
export function parseTraceparent(text: string): TraceContext | null {
  const [, version, traceId = '', spanId = '', flags = '', more] = TRACEPARENT.exec(text) ?? [];
  if (version === undefined || version === 'ff' || (version === '00' && more !== undefined)) return null;
  if (/^0*$/.test(traceId) || /^0*$/.test(spanId)) return null;
  return { traceId, spanId, sampled: (Number.parseInt(flags, 16) & SAMPLED_BIT) === SAMPLED_BIT };
}

export function formatTraceparent({ traceId, spanId, sampled }: TraceContext): string {
  return `00-${traceId}-${spanId}-${sampled ? '01' : '00'}`;
}

/**
 * Returns the trace id of a session that was submitted without a trace. It is derived from the session's id, so that every process computes
 * the same trace id.
 */
export function traceIdOf(id: string): string {
  return createHash('sha256').update(`trace of ${id}`).digest('hex').slice(0, TRACE_ID_CHARS);
}

/** Attributes of a span. Attributes with the value `null` are left out. */
export type SpanAttributes = Readonly<Record<string, string | number | boolean | null>>;

/** Kind of a span: `client` for a call to another process, `internal` for all other work. */
export type SpanKind = 'internal' | 'client';

/** A timed operation of a trace. None of its methods throws. */
export interface Span {
  /** The traceparent header to send with calls to other processes; `null` when there is no trace. */
  readonly traceparent: string | null;
  child(name: string, attributes?: SpanAttributes, kind?: SpanKind): Span;
  set(attributes: SpanAttributes): void;
  /** Ends the span. Only the first call has an effect. `error` is the message of the failure; absent or `null` after success. */
  end(error?: string | null): void;
}

/**
 * Where a new span is placed. It becomes a child of the span in the traceparent `parent`. When `parent` is `null` or invalid, it becomes
 * the root of the trace that is derived from `id`.
 */
export type SpanOrigin = { readonly parent: string | null; readonly id: string };

export interface Tracer {
  start(name: string, origin: SpanOrigin, attributes: SpanAttributes, kind?: SpanKind): Span;
}

/**
 * Returns a span that is not recorded. The span and its children have the given `traceparent`, so that the trace continues in other
 * processes.
 */
export function passThroughSpan(traceparent: string | null): Span {
  const span: Span = { traceparent, child: () => span, set: () => {}, end: () => {} };
  return span;
}

export const NO_SPAN: Span = passThroughSpan(null);

/** A tracer that records no spans, but passes the traceparent of its caller on to other processes. */
export const passThroughTracer: Tracer = { start: (_, { parent }) => passThroughSpan(parent) };

/** Ends `span` when `work` settles, with an error message when `work` rejects. Resolves or rejects with the outcome of `work`. */
export async function endSpanWith<T>(span: Span, work: Promise<T>): Promise<T> {
  try {
    const value = await work;
    span.end();
    return value;
  } catch (thrown) {
    span.end(messageOf(thrown));
    throw thrown;
  }
}
