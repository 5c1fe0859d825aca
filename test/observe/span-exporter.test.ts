import { once } from 'node:events';
import { PassThrough } from 'node:stream';
import { afterEach, describe, expect, it } from 'vitest';
import { VirtualClock } from '../../src/core/virtual-clock.ts';
import { createLogger } from '../../src/observe/log.ts';
import type { FinishedSpan } from '../../src/observe/recording-tracer.ts';
import { SpanExporter } from '../../src/observe/span-exporter.ts';
import { tracingFromEnvironment } from '../../src/observe/tracing.ts';
import { attributesOf, Collector } from './collector.ts';

const span = (n: number, over: Partial<FinishedSpan> = {}): FinishedSpan => ({
  traceId: '0af7651916cd43dd8448eb211c80319c',
  spanId: n.toString(16).padStart(16, '0'),
  parentSpanId: null,
  name: `span ${n}`,
  kind: 'internal',
  startMs: 1_700_000_000_000.25,
  endMs: 1_700_000_000_001.5,
  attributes: {},
  error: null,
  ...over,
});

let collector: Collector | null = null;
afterEach(async () => {
  await collector?.stop();
  collector = null;
});

async function exporter(answers: number[] = []) {
  collector = await Collector.start(answers);
  const clock = new VirtualClock();
  const lines = new PassThrough();
  const made = new SpanExporter({
    url: `${collector.url}/v1/traces`,
    headers: { 'x-api-key': 'secret' },
    resource: { 'service.name': 'floe-test' },
    clock,
    log: createLogger('test', 'info', lines),
  });
  return { collector, clock, lines, exporter: made };
}

describe('the span exporter', () => {
  it('speaks OTLP: ids, nanoseconds as text, typed attributes, errors, and whose spans they are', async () => {
    const { collector, clock, exporter: made } = await exporter();
    const attributes = { text: 'a', whole: 3, part: 0.5, yes: true, nothing: null };
    made.add(span(1, { parentSpanId: 'b7ad6b7169203331', kind: 'client', attributes, error: 'went wrong' }));
    clock.advance(2_000);
    const [sent] = await collector.until((spans) => spans.length === 1);
    expect(sent).toMatchObject({
      spanId: '0000000000000001',
      parentSpanId: 'b7ad6b7169203331',
      kind: 3,
      startTimeUnixNano: '1700000000000250000',
      endTimeUnixNano: '1700000000001500000',
      status: { code: 2, message: 'went wrong' },
    });
    expect(sent?.attributes).toEqual([
      { key: 'text', value: { stringValue: 'a' } },
      { key: 'whole', value: { intValue: '3' } },
      { key: 'part', value: { doubleValue: 0.5 } },
      { key: 'yes', value: { boolValue: true } },
    ]);
    const [request] = collector.exports;
    expect(request?.path).toBe('/v1/traces');
    expect(request?.headers['x-api-key']).toBe('secret');
    const resource = request?.body.resourceSpans[0]?.resource;
    expect(resource === undefined ? null : attributesOf(resource)).toEqual({ 'service.name': 'floe-test' });
    await made.close();
  });

  it('sends a batch again that was refused, with what has come since, and says so once', async () => {
    const { collector, clock, lines, exporter: made } = await exporter([503, 503]);
    made.add(span(1));
    clock.advance(2_000);
    await collector.until((spans) => spans.length === 1);
    const [line] = await once(lines, 'data');
    expect(JSON.parse(String(line))).toMatchObject({ msg: 'the trace collector takes no spans' });
    made.add(span(2));
    await made.close();
    expect(
      collector.exports.map(({ body }) => body.resourceSpans[0]?.scopeSpans[0]?.spans.map((one) => one.name)),
    ).toEqual([['span 1'], ['span 1', 'span 2']]);
    expect(lines.read()).toBeNull();
    expect(made.droppedCount).toBe(2);
  });

  it('drops what there is no room for, and counts it', async () => {
    const { clock, exporter: made } = await exporter(Array(50).fill(500));
    for (let n = 1; n <= 9_000; n++) made.add(span(n));
    expect(made.droppedCount).toBe(9_000 - 8_192);
    clock.advance(0);
    await made.close();
    expect(made.droppedCount).toBe(9_000);
  });

  it('sends everything at the end, in batches', async () => {
    const { collector, exporter: made } = await exporter();
    for (let n = 1; n <= 1_100; n++) made.add(span(n));
    await made.close();
    expect(collector.spans.map(({ name }) => name)).toEqual(Array.from({ length: 1_100 }, (_, n) => `span ${n + 1}`));
    expect(made.droppedCount).toBe(0);
  });
});

describe('tracing from the environment', () => {
  const log = createLogger('test', 'silent');
  const tracing = (environment: Record<string, string>) =>
    tracingFromEnvironment(environment, 'floe-test', {}, { clock: new VirtualClock(), log });

  it('records nothing without a collector', () => {
    expect(tracing({}).tracer.start('a', { parent: null, id: 'x' }, {}).traceparent).toBeNull();
  });

  it('goes where it is told, with the headers and the name it is told', async () => {
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
  ])('refuses %j', (environment, message) => {
    expect(() => tracing(environment as Record<string, string>)).toThrow(message);
  });
});
