import { describe, expect, it } from 'vitest';
import type { Clock } from '../../src/core/clock.ts';
import { endSpanWith, parseTraceparent, traceIdOf } from '../../src/core/tracing.ts';
import { VirtualClock } from '../../src/core/virtual-clock.ts';
import { type FinishedSpan, recordingTracer } from '../../src/observe/recording-tracer.ts';

const TRACE = '0af7651916cd43dd8448eb211c80319c';
const SPAN = 'b7ad6b7169203331';

function recorder(clock: Clock = new VirtualClock()) {
  const spans: FinishedSpan[] = [];
  return { spans, tracer: recordingTracer(clock, (span) => spans.push(span)) };
}

describe('recorded spans', () => {
  it('are below the span that the submitter named, and children below them', () => {
    const { spans, tracer } = recorder();
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

  it('without a parent are at the top of the trace of their id, so that attempts of a session meet', () => {
    const { spans, tracer } = recorder();
    for (const attempt of [1, 2]) tracer.start('attempt', { parent: null, id: 'ses_1' }, { attempt }).end();
    expect(spans.map(({ traceId, parentSpanId }) => [traceId, parentSpanId])).toEqual([
      [traceIdOf('ses_1'), null],
      [traceIdOf('ses_1'), null],
    ]);
    expect(spans[0]?.spanId).not.toBe(spans[1]?.spanId);
  });

  it('are not made for a trace that is not sampled, which is handed on as it came', () => {
    const { spans, tracer } = recorder();
    const parent = `00-${TRACE}-${SPAN}-00`;
    const span = tracer.start('attempt', { parent, id: 'ses_1' }, {});
    expect(span.child('call').traceparent).toBe(parent);
    span.end();
    expect(spans).toEqual([]);
  });

  it('last as long as they took, though the wall clock jumps', () => {
    const time = { nowMs: 1_000_000, monotonicMs: 5 };
    const clock: Clock = { nowMs: () => time.nowMs, monotonicMs: () => time.monotonicMs, schedule: () => () => {} };
    const { spans, tracer } = recorder(clock);
    const span = tracer.start('attempt', { parent: null, id: 'x' }, {});
    time.monotonicMs += 40;
    time.nowMs -= 500_000;
    span.end();
    expect(spans[0]).toMatchObject({ startMs: 1_000_000, endMs: 1_000_040 });
  });

  it('end once, with what the work failed with', async () => {
    const { spans, tracer } = recorder();
    const span = tracer.start('attempt', { parent: null, id: 'x' }, {});
    await expect(endSpanWith(span, Promise.reject(new Error('no'.repeat(5_000))))).rejects.toThrow();
    span.end();
    expect(spans).toHaveLength(1);
    expect(spans[0]?.error).toMatch(/^(no){500}$/);
  });
});
