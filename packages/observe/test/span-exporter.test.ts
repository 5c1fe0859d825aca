import { once } from 'node:events';
import { PassThrough } from 'node:stream';
import { VirtualClock } from '@floe-rl/core';
import { afterEach, describe, expect, it } from 'vitest';
import { createLogger } from '../src/log.ts';
import { type FinishedSpan, SpanExporter } from '../src/span-exporter.ts';
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

async function startExporter(statuses: number[] = []) {
  collector = await Collector.start(statuses);
  const clock = new VirtualClock();
  const lines = new PassThrough();
  const exporter = new SpanExporter({
    url: `${collector.url}/v1/traces`,
    headers: { 'x-api-key': 'secret' },
    resource: { 'service.name': 'floe-test' },
    clock,
    log: createLogger('test', 'info', lines),
  });
  return { collector, clock, lines, exporter };
}

describe('SpanExporter', () => {
  it('sends ids, nanoseconds as strings, typed attributes, errors and the resource in the format of OTLP', async () => {
    const { collector, clock, exporter } = await startExporter();
    const attributes = { text: 'a', whole: 3, part: 0.5, yes: true, nothing: null };
    exporter.add(span(1, { parentSpanId: 'b7ad6b7169203331', kind: 'client', attributes, error: 'went wrong' }));
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
    await exporter.close();
  });

  it('sends a rejected batch once more with later spans and logs the failure once', async () => {
    const { collector, clock, lines, exporter } = await startExporter([503, 503]);
    exporter.add(span(1));
    clock.advance(2_000);
    await collector.until((spans) => spans.length === 1);
    const [line] = await once(lines, 'data');
    expect(JSON.parse(String(line))).toMatchObject({
      msg: 'the trace collector does not accept spans; they wait in memory',
    });
    exporter.add(span(2));
    await exporter.close();
    expect(
      collector.exports.map(({ body }) => body.resourceSpans[0]?.scopeSpans[0]?.spans.map((one) => one.name)),
    ).toEqual([['span 1'], ['span 1', 'span 2']]);
    expect(lines.read()).toBeNull();
    expect(exporter.droppedCount).toBe(2);
  });

  it('drops and counts spans beyond its capacity', async () => {
    const { clock, exporter } = await startExporter(Array(50).fill(500));
    for (let n = 1; n <= 9_000; n++) exporter.add(span(n));
    expect(exporter.droppedCount).toBe(9_000 - 8_192);
    clock.advance(0);
    await exporter.close();
    expect(exporter.droppedCount).toBe(9_000);
  });

  it('sends all queued spans in batches when it closes', async () => {
    const { collector, exporter } = await startExporter();
    for (let n = 1; n <= 1_100; n++) exporter.add(span(n));
    await exporter.close();
    expect(collector.spans.map(({ name }) => name)).toEqual(Array.from({ length: 1_100 }, (_, n) => `span ${n + 1}`));
    expect(exporter.droppedCount).toBe(0);
  });
});
