import { createHash } from 'node:crypto';

/** What W3C Trace Context calls a traceparent: `00-<trace id>-<span id>-<flags>`, in hexadecimal. */
export type TraceContext = { readonly traceId: string; readonly spanId: string; readonly sampled: boolean };

/** Later versions may append fields, which version 00 may not have. */
const TRACEPARENT = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;
const SAMPLED_BIT = 1;
const TRACE_ID_CHARS = 32;

/** Null for what is no traceparent: then a caller has no trace, which is never an error. */
export function parseTraceparent(text: string): TraceContext | null {
  const [, version, traceId = '', spanId = '', flags = '', more] = TRACEPARENT.exec(text) ?? [];
  if (version === undefined || version === 'ff' || (version === '00' && more !== undefined)) return null;
  if (/^0*$/.test(traceId) || /^0*$/.test(spanId)) return null;
  return { traceId, spanId, sampled: (Number.parseInt(flags, 16) & SAMPLED_BIT) === SAMPLED_BIT };
}

export function formatTraceparent({ traceId, spanId, sampled }: TraceContext): string {
  return `00-${traceId}-${spanId}-${sampled ? '01' : '00'}`;
}

/** The trace of something whose submitter named none: every process that knows its id comes to the same. */
export function traceIdOf(id: string): string {
  return createHash('sha256').update(`trace of ${id}`).digest('hex').slice(0, TRACE_ID_CHARS);
}

/** Null where there is nothing to tell. */
export type SpanAttributes = Readonly<Record<string, string | number | boolean | null>>;

/** `client`: a call to another process. */
export type SpanKind = 'internal' | 'client';

/** Something that takes time. None of its functions throws. */
export interface Span {
  /** What others who work for it are told; null: there is no trace. */
  readonly traceparent: string | null;
  child(name: string, attributes?: SpanAttributes, kind?: SpanKind): Span;
  set(attributes: SpanAttributes): void;
  /** The first call counts. `error`: what it failed with. */
  end(error?: string | null): void;
}

/** Where a span belongs: below what its traceparent names, else at the top of the trace of `id`. */
export type TracePlace = { readonly parent: string | null; readonly id: string };

export interface Tracer {
  start(name: string, place: TracePlace, attributes: SpanAttributes, kind?: SpanKind): Span;
}

/** A span that nobody looks at: it hands on what it was given, so that the trace goes on beyond it. */
export function passingSpan(traceparent: string | null): Span {
  const span: Span = { traceparent, child: () => span, set: () => {}, end: () => {} };
  return span;
}

export const NO_SPAN: Span = passingSpan(null);

/** Records nothing. */
export const passingTracer: Tracer = { start: (_, { parent }) => passingSpan(parent) };

/** Ends `span` as `work` does. Settles as `work` does. */
export async function during<T>(span: Span, work: Promise<T>): Promise<T> {
  try {
    const value = await work;
    span.end();
    return value;
  } catch (thrown) {
    span.end(thrown instanceof Error ? thrown.message : String(thrown));
    throw thrown;
  }
}
