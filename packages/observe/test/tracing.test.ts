import { type Clock, endSpanWith, parseTraceparent, traceIdOf, VirtualClock } from '@floe-rl/core';
import { afterEach, describe, expect, it } from 'vitest';
import { createLogger } from '../src/log.ts';
import type { FinishedSpan } from '../src/span-exporter.ts';
import { recordingTracer, tracingFromEnvironment } from '../src/tracing.ts';
import { attributesOf, Collector } from './collector.ts';

const TRACE = '0af7651916cd43dd8448eb211c80319c';
const SPAN = 'b7ad6b7169203331';

function startRecorder(clock: Clock = new VirtualClock()) {
  const spans: FinishedSpan[] = [];
  return { spans, tracer: recordingTracer(clock, (span) => spans.push(span)) };
}

describe('recordingTracer', () => {
  it('puts a span below the span that the submitter named, and its children below itself', () => {
    const { spans, tracer } = startRecorder();
    const attempt = tracer.start('attempt', { parent: `00-${TRACE}-${SPAN}-01`, id: 'ses_1' }, { attempt: 1 });
    const call = attempt.child('call', { n: 1 }, 'client');
    call.set({ engine: 'e' });
    call.end();
    attempt.end();
    const [first, second] = spans as [FinishedSpan, FinishedSpan];
    expect(second).toMatchObject({
      name: 'attempt',
      traceId: TRACE,
      parentSpanId: SPAN,
      kind: 'internal',
      error: null,
    });
    expect(first).toMatchObject({ name: 'call', traceId: TRACE, parentSpanId: second.spanId, kind: 'client' });
    expect(first.attributes).toEqual({ n: 1, engine: 'e' });
    expect(parseTraceparent(call.traceparent ?? '')).toEqual({ traceId: TRACE, spanId: first.spanId, sampled: true });
  });

  it('puts all attempts of a session without a parent at the top of one trace', () => {
    const { spans, tracer } = startRecorder();
    for (const attempt of [1, 2]) tracer.start('attempt', { parent: null, id: 'ses_1' }, { attempt }).end();
    expect(spans.map(({ traceId, parentSpanId }) => [traceId, parentSpanId])).toEqual([
      [traceIdOf('ses_1'), null],
      [traceIdOf('ses_1'), null],
    ]);
    expect(spans[0]?.spanId).not.toBe(spans[1]?.spanId);
  });

  it('records nothing of a trace that is not sampled and passes its traceparent through', () => {
    const { spans, tracer } = startRecorder();
    const parent = `00-${TRACE}-${SPAN}-00`;
    const span = tracer.start('attempt', { parent, id: 'ses_1' }, {});
    expect(span.child('call').traceparent).toBe(parent);
    span.end();
    expect(spans).toEqual([]);
  });

  it('measures durations correctly when the wall clock jumps', () => {
    const time = { nowMs: 1_000_000, monotonicMs: 5 };
    const clock: Clock = { nowMs: () => time.nowMs, monotonicMs: () => time.monotonicMs, schedule: () => () => {} };
    const { spans, tracer } = startRecorder(clock);
    const span = tracer.start('attempt', { parent: null, id: 'x' }, {});
    time.monotonicMs += 40;
    time.nowMs -= 500_000;
    span.end();
    expect(spans[0]).toMatchObject({ startMs: 1_000_000, endMs: 1_000_040 });
  });

  it('ends a span once, with the shortened message of the failure', async () => {
    const { spans, tracer } = startRecorder();
    const span = tracer.start('attempt', { parent: null, id: 'x' }, {});
    await expect(endSpanWith(span, Promise.reject(new Error('no'.repeat(5_000))))).rejects.toThrow();
    span.end();
    expect(spans).toHaveLength(1);
    expect(spans[0]?.error).toMatch(/^(no){500}$/);
  });
});

describe('tracingFromEnvironment', () => {
  let collector: Collector | null = null;
  afterEach(async () => {
    await collector?.stop();
    collector = null;
  });

  const log = createLogger('test', 'silent');
  const tracing = (environment: Record<string, string>) =>
    tracingFromEnvironment(environment, 'floe-test', {}, { clock: new VirtualClock(), log });

  it('records nothing without a collector', () => {
    expect(tracing({}).tracer.start('a', { parent: null, id: 'x' }, {}).traceparent).toBeNull();
  });

  it('sends spans to the configured address with the configured headers and service name', async () => {
    collector = await Collector.start();
    const { tracer, close } = tracing({
      OTEL_EXPORTER_OTLP_ENDPOINT: `${collector.url}/otel/`,
      OTEL_EXPORTER_OTLP_HEADERS: 'authorization=Bearer%20abc,X-Team=rl',
      OTEL_SERVICE_NAME: 'mine',
    });
    tracer.start('a', { parent: null, id: 'x' }, {}).end();
    await close();
    const [request] = collector.exports;
    expect(request?.path).toBe('/otel/v1/traces');
    expect(request?.headers).toMatchObject({ authorization: 'Bearer abc', 'x-team': 'rl' });
    const resource = request?.body.resourceSpans[0]?.resource;
    expect(resource === undefined ? null : attributesOf(resource)).toEqual({ 'service.name': 'mine' });
  });

  it.each([
    [{ OTEL_EXPORTER_OTLP_ENDPOINT: 'collector:4318' }, 'OTEL_EXPORTER_OTLP_ENDPOINT'],
    [{ OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'nowhere' }, 'OTEL_EXPORTER_OTLP_TRACES_ENDPOINT'],
    [
      { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://a', OTEL_EXPORTER_OTLP_HEADERS: 'secret' },
      'every entry must be name=value',
    ],
    [{ OTEL_EXPORTER_OTLP_ENDPOINT: 'http://a', OTEL_EXPORTER_OTLP_HEADERS: 'a=%zz' }, 'percent-encoded'],
  ])('rejects %j', (environment, message) => {
    expect(() => tracing(environment as Record<string, string>)).toThrow(message);
  });
});
