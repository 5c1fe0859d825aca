import { describe, expect, it } from 'vitest';
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

type Experts = NonNullable<BuiltTrace['routedExperts']>;

function withExperts({ trace }: Session, change: (experts: Experts) => Experts): BuiltTrace {
  if (trace.routedExperts === null) throw new Error('the trace has no experts');
  return { ...trace, routedExperts: change(trace.routedExperts) };
}

/** Adds routed experts to a completion: one byte for each position except the last. */
function expertsFor(completion: Completion, seed: number): Completion {
  const rows = completion.promptIds.length + completion.responseIds.length - 1;
  const data = Buffer.from(Array.from({ length: rows }, (_, row) => (row * 3 + seed) % 50));
  return { ...completion, routedExperts: { dtype: 'uint8', shape: [rows, 1, 1], start: 0, data } };
}

/** Builds a session of two turns in one trace, and an auxiliary call that is excluded from training. */
function session(): Session {
  const t = new Transcript();
  const h0 = t.start();
  const c0 = t.call(h0);
  t.call(t.after(h0, c0));
  t.call(t.start(), { auxiliary: true });
  const graph = buildGraph(t.completions.map((completion, index) => expertsFor(completion, index)));
  const result = builders.get('prefix_merging').build(graph, {});
  const trace = result.traces[0];
  const span = trace?.spans[1];
  if (trace === undefined || span === undefined) throw new Error('no trace');
  return { graph, result, trace, span };
}

/** Audits the session with `traces`, which may differ from the traces of its builder. Returns the audit, or the error that the audit throws. */
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
  [
    'a constraint that no request had',
    ({ trace, span: { start } }) => [
      { ...trace, constrainedSpans: [{ constraint: 'tool_choice', start, end: start + 1 }] },
    ],
    /another constraint/,
  ],
  [
    'a constraint beyond its end',
    ({ trace }) => [
      { ...trace, constrainedSpans: [{ constraint: 'tool_choice', start: 0, end: trace.lossMask.length + 1 }] },
    ],
    /constrained spans/,
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
    'a trained completion that it does not name',
    ({ trace }) => [{ ...trace, nodes: trace.nodes.slice(0, 1) }],
    /does not name/,
  ],
  [
    'version spans out of order',
    ({ trace }) => [{ ...trace, versionSpans: trace.versionSpans.toReversed() }],
    /overlap/,
  ],
  [
    'a row of routed experts too few',
    (s) => [
      withExperts(s, ({ shape, data, ...head }) => ({ ...head, shape: [shape[0] - 1, 1, 1], data: data.subarray(1) })),
    ],
    /one row for each position/,
  ],
  [
    'routed experts from another place',
    (s) => [withExperts(s, (e) => ({ ...e, start: 1 }))],
    /one row for each position/,
  ],
  [
    'fewer bytes than rows',
    (s) => [withExperts(s, (e) => ({ ...e, data: e.data.subarray(1) }))],
    /one row for each position/,
  ],
  [
    'the experts of another token',
    (s) => [
      withExperts(s, (e) => ({ ...e, data: Buffer.from(changed(e.data, s.trace.promptLength + s.span.start, 77)) })),
    ],
    /other routed experts/,
  ],
  [
    'experts that the completion has not',
    (s) => [
      withExperts(s, (e) => ({
        ...e,
        dtype: 'uint16',
        shape: [e.shape[0], 1, 1],
        data: Buffer.concat([e.data, e.data]),
      })),
    ],
    /other routed experts/,
  ],
  [
    'a turn that is not the next',
    ({ trace }) => [{ ...trace, step: { episode: 0, turn: 1, last: true } }],
    /not the next step/,
  ],
  [
    'an episode without an end',
    ({ trace }) => [{ ...trace, step: { episode: 0, turn: 0, last: false } }],
    /no last step/,
  ],
  [
    'another context than claimed',
    ({ trace, span }) => [{ ...trace, ids: changed(trace.ids, trace.promptLength + span.start - 1, 7) }],
    /claims a context/,
  ],
  ['a cut column', ({ trace }) => [{ ...trace, logprobs: trace.logprobs.slice(1) }], /differ in length/],
];

function changeExperts(completion: Completion, change: Partial<Experts>): Completion {
  const { routedExperts, ...rest } = expertsFor(completion, 0);
  if (routedExperts === null) throw new Error('no experts');
  return { ...rest, routedExperts: { ...routedExperts, ...change } };
}

describe('the audit', () => {
  it('accepts the traces of the builder', () => {
    const s = session();
    expect(auditOf(s, s.result.traces)).toMatchObject({
      tokens: { sampled: 15, trained: 10, excluded: { auxiliary: 5 } },
      completions: { recorded: 3, trained: 2, excluded: { auxiliary: 1 } },
      exact_context_share: 1,
    });
  });

  it.each(wrong)('refuses %s', (_, spoil, message) => {
    const s = session();
    expect(auditOf(s, spoil(s))).toMatchObject({ code: 'audit_failed', message: expect.stringMatching(message) });
  });

  it('reports the trace and the position of a trained token that was not sampled', () => {
    const s = session();
    const position = s.span.start - 1;
    const lossMask = changed(s.trace.lossMask, position, 1);
    expect(auditOf(s, [{ ...s.trace, lossMask }])).toMatchObject({ details: { trace: 0, position } });
  });

  it('refuses exclusions that do not add up, and reports the numbers', () => {
    const s = session();
    const both = new Map([...s.result.excluded, ['c0', 'abandoned']]);
    expect(auditOf(s, s.result.traces, both)).toMatchObject({
      code: 'audit_failed',
      details: { completion_id: 'c0', sampled: 5, trained: 5, excluded: 'abandoned' },
    });
    expect(auditOf(s, s.result.traces, new Map())).toMatchObject({ code: 'audit_failed', details: { trained: 0 } });
    const stranger = new Map([...s.result.excluded, ['x', 'auxiliary']]);
    expect(auditOf(s, s.result.traces, stranger)).toMatchObject({
      code: 'audit_failed',
      details: { completion_id: 'x' },
    });
  });

  it('refuses a completion with more log-probabilities than ids, and reports both numbers', () => {
    const s = session();
    const nodes = s.graph.nodes.map((node, index) => {
      if (index > 0) return node;
      const logprobs = new Float32Array(node.completion.responseLogprobs.length + 1);
      return { ...node, completion: { ...node.completion, responseLogprobs: logprobs } };
    });
    expect(auditOf({ ...s, graph: { ...s.graph, nodes } }, s.result.traces)).toMatchObject({
      code: 'audit_failed',
      details: { completion_id: 'c0', ids: 5, logprobs: 6 },
    });
  });

  it('refuses a trace that does not name the constraint of a trained reply, or names another one', () => {
    const t = new Transcript();
    const h0 = t.start();
    t.call(t.after(h0, t.call(h0)), { constraint: 'tool_choice' });
    const graph = buildGraph(t.completions);
    const { traces, excluded } = builders.get('prefix_merging').build(graph, { constrained: 'train' });
    const [trace] = traces as [BuiltTrace];
    const [span] = trace.constrainedSpans;
    if (span === undefined) throw new Error('the trace names no constraint');
    expect(auditTraces(graph, traces, excluded).audit.tokens).toMatchObject({ trained: 10, constrained: 5 });
    for (const constrainedSpans of [
      [],
      [{ ...span, constraint: 'response_format' as const }],
      [{ ...span, end: span.end - 1 }],
      [{ ...span, start: 0 }],
    ]) {
      expect(() => auditTraces(graph, [{ ...trace, constrainedSpans }], excluded)).toThrow(/another constraint/);
    }
  });

  it('refuses interleaved steps of two episodes', () => {
    const t = new Transcript();
    const h0 = t.start();
    t.call(t.after(h0, t.call(h0)));
    t.call(t.after(h0, t.completions[0] as Completion));
    const graph = buildGraph(t.completions);
    const { traces, excluded } = builders.get('step').build(graph, {});
    expect(traces.map((trace) => trace.step)).toEqual([
      { episode: 0, turn: 0, last: false },
      { episode: 0, turn: 1, last: true },
      { episode: 1, turn: 0, last: true },
    ]);
    expect(auditTraces(graph, traces, excluded).audit.tokens.trained).toBe(15);
    const [a, b, c] = traces as [BuiltTrace, BuiltTrace, BuiltTrace];
    for (const mixed of [
      [a, c, b],
      [b, a, c],
      [a, { ...b, step: { episode: 1, turn: 1, last: true } }, c],
    ]) {
      expect(() => auditTraces(graph, mixed, excluded)).toThrow(/not the next step/);
    }
    const again = [{ ...a, step: { episode: 1, turn: 0, last: true } }, { ...b, step: null }, c];
    expect(() => auditTraces(graph, again, excluded)).toThrow(/not the next step/);
  });

  it('counts an unclaimed context as inexact by comparing it', () => {
    const s = session();
    const { trace, span } = s;
    const ids = changed(trace.ids, trace.promptLength + span.start - 1, 7);
    const spans = trace.spans.map((one) => ({ ...one, exactContext: false }));
    expect(auditOf(s, [{ ...trace, ids, spans }])).toMatchObject({ exact_context_share: 0.5 });
    expect(auditOf(s, [{ ...trace, spans }])).toMatchObject({ exact_context_share: 1 });
  });

  it.each<[string, (c: Completion) => Completion]>([
    ['logprobs of another length', (c) => ({ ...c, responseLogprobs: c.responseLogprobs.slice(1) })],
    ['a logprob that is no number', (c) => ({ ...c, responseLogprobs: changed(c.responseLogprobs, 2, Number.NaN) })],
    ['an infinite logprob', (c) => ({ ...c, responseLogprobs: changed(c.responseLogprobs, 2, -Infinity) })],
    ['version spans with a gap', (c) => ({ ...c, versionSpans: [{ version: 'v1', start: 1, end: 5 }] })],
    ['ids although its engine reports none', (c) => ({ ...c, capture: { ...c.capture, mode: 'text' } })],
    ['experts for more tokens than there are', (c) => changeExperts(c, { start: 1 })],
    ['fewer bytes of experts than rows', (c) => changeExperts(c, { data: Buffer.alloc(3) })],
    ['version spans that end early', (c) => ({ ...c, versionSpans: [{ version: 'v1', start: 0, end: 4 }] })],
  ])('refuses a completion with %s', (_, spoil) => {
    const t = new Transcript();
    const graph = buildGraph([spoil(t.call(t.start()))]);
    const { traces, excluded } = builders.get('per_request').build(graph, {});
    expect(() => auditTraces(graph, traces, excluded)).toThrow(expect.objectContaining({ code: 'audit_failed' }));
  });
});

describe('the builder registry', () => {
  it('names the registered builders when it refuses an unknown one', () => {
    expect(() => builders.check({ strategy: 'nope', config: {} })).toThrow(
      expect.objectContaining({
        code: 'unknown_builder',
        message: 'builder.strategy: no "nope"; there are prefix_merging, per_request, step',
      }),
    );
  });

  it('refuses an unknown configuration field and names it', () => {
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

  it('refuses completions of two attempts, and a completion that occurs twice', () => {
    const t = new Transcript();
    const c0 = t.call(t.start());
    expect(() => buildGraph([c0, c0])).toThrow(expect.objectContaining({ code: 'internal' }));
    expect(() => buildGraph([c0, { ...c0, completionId: 'x', attempt: 2 }])).toThrow(/another attempt/);
  });
});
