import { createHash } from 'node:crypto';

/** A parsed W3C traceparent (`00-<trace id>-<span id>-<flags>`); the ids are hexadecimal. */
export type TraceContext = { readonly traceId: string; readonly spanId: string; readonly sampled: boolean };

/** Later versions may append fields; version 00 may not. */
const TRACEPARENT = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;
const SAMPLED_BIT = 1;
const TRACE_ID_CHARS = 32;

/** `null` when `text` is not a valid traceparent: the caller then has no trace, which is never an error. */
export function parseTraceparent(text: string): TraceContext | null {
  const [, version, traceId = '', spanId = '', flags = '', more] = TRACEPARENT.exec(text) ?? [];
  if (version === undefined || version === 'ff' || (version === '00' && more !== undefined)) return null;
  if (/^0*$/.test(traceId) || /^0*$/.test(spanId)) return null;
  return { traceId, spanId, sampled: (Number.parseInt(flags, 16) & SAMPLED_BIT) === SAMPLED_BIT };
}

export function formatTraceparent({ traceId, spanId, sampled }: TraceContext): string {
  return `00-${traceId}-${spanId}-${sampled ? '01' : '00'}`;
}

/** The trace id of a session whose submitter gave no trace; every process derives the same one from the session's id. */
export function traceIdOf(id: string): string {
  return createHash('sha256').update(`trace of ${id}`).digest('hex').slice(0, TRACE_ID_CHARS);
}

/** Attributes whose value is `null` are left out. */
export type SpanAttributes = Readonly<Record<string, string | number | boolean | null>>;

/** `client` marks a call to another process. */
export type SpanKind = 'internal' | 'client';

/** A timed operation. None of the methods throws. */
export interface Span {
  /** The traceparent to send with calls to other processes; `null` when there is no trace. */
  readonly traceparent: string | null;
  child(name: string, attributes?: SpanAttributes, kind?: SpanKind): Span;
  set(attributes: SpanAttributes): void;
  /** Only the first call counts. `error` is the message of the failure; absent or `null` after success. */
  end(error?: string | null): void;
}

/** Where a span belongs: below the span that `parent`, a traceparent, names, or else at the top of the trace derived from `id`. */
export type SpanOrigin = { readonly parent: string | null; readonly id: string };

export interface Tracer {
  start(name: string, origin: SpanOrigin, attributes: SpanAttributes, kind?: SpanKind): Span;
}

/** A span that is not recorded. It and its children pass `traceparent` through, so that the trace continues in other processes. */
export function passThroughSpan(traceparent: string | null): Span {
  const span: Span = { traceparent, child: () => span, set: () => {}, end: () => {} };
  return span;
}

export const NO_SPAN: Span = passThroughSpan(null);

/** Records nothing. */
export const passThroughTracer: Tracer = { start: (_, { parent }) => passThroughSpan(parent) };

/** Ends `span` when `work` settles, with its error when it fails. Settles as `work` does. */
export async function endSpanWith<T>(span: Span, work: Promise<T>): Promise<T> {
  try {
    const value = await work;
    span.end();
    return value;
  } catch (thrown) {
    span.end(thrown instanceof Error ? thrown.message : String(thrown));
    throw thrown;
  }
}
