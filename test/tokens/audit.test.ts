import { describe, expect, test } from 'vitest';
import { auditTraces } from '../../src/tokens/audit.ts';
import type { BuildResult, BuiltTrace, TrainedSpan } from '../../src/tokens/builders/builder.ts';
import { builderRegistry } from '../../src/tokens/builders/registry.ts';
import type { Completion } from '../../src/tokens/completion.ts';
import { buildGraph, type TokenGraph } from '../../src/tokens/graph.ts';
import { Transcript } from './transcript.ts';

const builders = builderRegistry();

type Session = {
  readonly graph: TokenGraph;
  readonly result: BuildResult;
  readonly trace: BuiltTrace;
  readonly span: TrainedSpan;
};

/** Two turns in one trace, and an auxiliary call that is excluded. */
function session(): Session {
  const t = new Transcript();
  const h0 = t.start();
  const c0 = t.call(h0);
  t.call(t.after(h0, c0));
  t.call(t.start(), { auxiliary: true });
  const graph = buildGraph(t.completions);
  const result = builders.get('prefix_merging').build(graph, {});
  const trace = result.traces[0];
  const span = trace?.spans[1];
  if (trace === undefined || span === undefined) throw new Error('no trace');
  return { graph, result, trace, span };
}

/** What the audit says when the builder's trace is replaced. */
function auditOf({ graph, result }: Session, traces: readonly BuiltTrace[], excluded = result.excluded): unknown {
  try {
    return auditTraces(graph, traces, excluded).audit;
  } catch (thrown) {
    return thrown;
  }
}

function changed<T extends Int32Array | Float32Array | Uint8Array>(column: T, at: number, value: number): T {
  const copy = column.slice() as T;
  copy[at] = value;
  return copy;
}

const wrong: [string, (s: Session) => BuiltTrace[], RegExp][] = [
  [
    'another id',
    ({ trace, span }) => [{ ...trace, ids: changed(trace.ids, trace.promptLength + span.start, 7) }],
    /other ids/,
  ],
  [
    'another logprob',
    ({ trace, span }) => [{ ...trace, logprobs: changed(trace.logprobs, span.start, -9) }],
    /other logprobs/,
  ],
  [
    'a version from elsewhere',
    ({ trace }) => [{ ...trace, versionSpans: trace.versionSpans.map((v) => ({ ...v, version: 'v9' })) }],
    /other versions/,
  ],
  ['no version', ({ trace }) => [{ ...trace, versionSpans: trace.versionSpans.slice(1) }], /version spans/],
  [
    'a masked sample',
    ({ trace, span }) => [{ ...trace, lossMask: changed(trace.lossMask, span.start, 0) }],
    /does not train/,
  ],
  [
    'a trained tool result',
    ({ trace, span }) => [{ ...trace, lossMask: changed(trace.lossMask, span.start - 1, 1) }],
    /was not sampled/,
  ],
  [
    'a logprob on a tool result',
    ({ trace, span }) => [{ ...trace, logprobs: changed(trace.logprobs, span.start - 1, -1) }],
    /was not sampled/,
  ],
  ['the same trace twice', ({ trace }) => [trace, trace], /trained twice/],
  ['no trace', () => [], /nothing is excluded/],
  ['overlapping spans', ({ trace, span }) => [{ ...trace, spans: [...trace.spans, span] }], /overlap/],
  [
    'a span of a stranger',
    ({ trace, span }) => [{ ...trace, spans: [...trace.spans.slice(0, 1), { ...span, completionId: 'x' }] }],
    /never recorded/,
  ],
  [
    'another context than claimed',
    ({ trace, span }) => [{ ...trace, ids: changed(trace.ids, trace.promptLength + span.start - 1, 7) }],
    /claims a context/,
  ],
  ['a cut column', ({ trace }) => [{ ...trace, logprobs: trace.logprobs.slice(1) }], /differ in length/],
];

describe('the audit', () => {
  test('finds nothing wrong with what the builder made', () => {
    const s = session();
    expect(auditOf(s, s.result.traces)).toMatchObject({
      tokens: { sampled: 15, trained: 10, excluded: { auxiliary: 5 } },
      completions: { recorded: 3, trained: 2, excluded: { auxiliary: 1 } },
      exact_context_share: 1,
    });
  });

  test.each(wrong)('refuses %s', (_, spoil, message) => {
    const s = session();
    expect(auditOf(s, spoil(s))).toMatchObject({ code: 'audit_failed', message: expect.stringMatching(message) });
  });

  test('refuses exclusions that do not add up, with the numbers', () => {
    const s = session();
    const both = new Map([...s.result.excluded, ['c0', 'abandoned']]);
    expect(auditOf(s, s.result.traces, both)).toMatchObject({
      code: 'audit_failed',
      details: { completion_id: 'c0', sampled: 5, trained: 5, excluded: 'abandoned' },
    });
    expect(auditOf(s, s.result.traces, new Map())).toMatchObject({ code: 'audit_failed', details: { trained: 0 } });
    const stranger = new Map([...s.result.excluded, ['x', 'auxiliary']]);
    expect(auditOf(s, s.result.traces, stranger)).toMatchObject({ code: 'audit_failed' });
  });

  test('counts an unclaimed context as inexact by comparing it', () => {
    const s = session();
    const { trace, span } = s;
    const ids = changed(trace.ids, trace.promptLength + span.start - 1, 7);
    const spans = trace.spans.map((one) => ({ ...one, exactContext: false }));
    expect(auditOf(s, [{ ...trace, ids, spans }])).toMatchObject({ exact_context_share: 0.5 });
    expect(auditOf(s, [{ ...trace, spans }])).toMatchObject({ exact_context_share: 1 });
  });

  test.each<[string, (c: Completion) => Completion]>([
    ['logprobs of another length', (c) => ({ ...c, responseLogprobs: c.responseLogprobs.slice(1) })],
    ['a logprob that is no number', (c) => ({ ...c, responseLogprobs: changed(c.responseLogprobs, 2, Number.NaN) })],
    ['an infinite logprob', (c) => ({ ...c, responseLogprobs: changed(c.responseLogprobs, 2, -Infinity) })],
    ['version spans with a gap', (c) => ({ ...c, versionSpans: [{ version: 'v1', start: 1, end: 5 }] })],
    ['version spans that end early', (c) => ({ ...c, versionSpans: [{ version: 'v1', start: 0, end: 4 }] })],
  ])('refuses a completion with %s', (_, spoil) => {
    const t = new Transcript();
    const graph = buildGraph([spoil(t.call(t.start()))]);
    const { traces, excluded } = builders.get('per_request').build(graph, {});
    expect(() => auditTraces(graph, traces, excluded)).toThrow(expect.objectContaining({ code: 'audit_failed' }));
  });
});

describe('the builder registry', () => {
  test('names what there is when asked for something else', () => {
    expect(() => builders.check({ strategy: 'nope', config: {} })).toThrow(
      expect.objectContaining({
        code: 'unknown_builder',
        message: 'builder.strategy: no "nope"; there are prefix_merging, per_request, step',
      }),
    );
  });

  test('refuses a configuration that a builder does not know, naming the field', () => {
    for (const [strategy, config, field] of [
      ['prefix_merging', { on_drfit: 'merge' }, 'on_drfit'],
      ['prefix_merging', { on_drift: 'guess' }, 'on_drift'],
      ['per_request', { fork_owner: 'first' }, 'fork_owner'],
    ] as const) {
      expect(() => builders.check({ strategy, config })).toThrow(
        expect.objectContaining({ code: 'schema_violation', message: expect.stringContaining(field) }),
      );
    }
    expect(() => builders.check({ strategy: 'prefix_merging', config: { include: ['auxiliary'] } })).not.toThrow();
  });

  test('refuses completions of two attempts, or one twice', () => {
    const t = new Transcript();
    const c0 = t.call(t.start());
    expect(() => buildGraph([c0, c0])).toThrow(expect.objectContaining({ code: 'internal' }));
    expect(() => buildGraph([c0, { ...c0, completionId: 'x', attempt: 2 }])).toThrow(/another attempt/);
  });
});
