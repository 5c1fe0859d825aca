import type { SpanAttributes } from '../core/tracing.ts';
import type { FinishedSpan } from './recording-tracer.ts';

/** Numbers of the protocol's enums. */
const KIND = { internal: 1, client: 3 } as const;
const STATUS_ERROR = 2;

const NANOS_PER_MS = 1_000_000n;

/** One `ExportTraceServiceRequest` of OTLP 1.x in its JSON form. `resource` says which process the spans are of. */
export function otlpRequest(resource: SpanAttributes, spans: readonly FinishedSpan[]): object {
  return {
    resourceSpans: [
      {
        resource: { attributes: attributesOf(resource) },
        scopeSpans: [{ scope: { name: 'floe' }, spans: spans.map(spanOf) }],
      },
    ],
  };
}

function spanOf(span: FinishedSpan): object {
  return {
    traceId: span.traceId,
    spanId: span.spanId,
    ...(span.parentSpanId === null ? {} : { parentSpanId: span.parentSpanId }),
    name: span.name,
    kind: KIND[span.kind],
    startTimeUnixNano: nanos(span.startMs),
    endTimeUnixNano: nanos(span.endMs),
    attributes: attributesOf(span.attributes),
    ...(span.error === null ? {} : { status: { code: STATUS_ERROR, message: span.error } }),
  };
}

/** 64-bit integers are text in the protocol's JSON; beyond 2^53 a number would lose its last digits. */
function nanos(ms: number): string {
  const whole = Math.floor(ms);
  return String(BigInt(whole) * NANOS_PER_MS + BigInt(Math.floor((ms - whole) * Number(NANOS_PER_MS))));
}

function attributesOf(attributes: SpanAttributes): object[] {
  return Object.entries(attributes).flatMap(([key, value]) =>
    value === null ? [] : [{ key, value: anyValue(value) }],
  );
}

function anyValue(value: string | number | boolean): object {
  if (typeof value === 'string') return { stringValue: value };
  if (typeof value === 'boolean') return { boolValue: value };
  return Number.isSafeInteger(value) ? { intValue: String(value) } : { doubleValue: value };
}
