import { type Audit, type Trajectory, trajectorySchema } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import type { Completion } from '../../src/tokens/completion.ts';
import { buildGraph } from '../../src/tokens/graph.ts';
import { buildTrajectory } from '../../src/tokens/trajectory.ts';
import { CLOSE } from './session.ts';
import { Transcript } from './transcript.ts';

type Built = { readonly trajectory: Trajectory; readonly audit: Audit };

function build(
  completions: readonly Completion[],
  config: Record<string, unknown> = {},
  strategy = 'prefix_merging',
): Built {
  const request = { spec: { strategy, config }, completions, reward: 1, error: null, metadata: {} };
  const { json, audit } = buildTrajectory({ ...request, status: 'COMPLETED' });
  return { trajectory: trajectorySchema.parse(JSON.parse(json.toString())), audit };
}

/** Builds the traces of a session and returns the completion ids of each trace. */
function chains(completions: readonly Completion[], config: Record<string, unknown> = {}): string[][] {
  return build(completions, config).trajectory.traces.map((trace) => trace.completion_ids);
}

function links(completions: readonly Completion[]): (string | null)[][] {
  return buildGraph(completions).nodes.map(({ link, parent, forkOf }) => [
    link,
    (parent ?? forkOf)?.completion.completionId ?? null,
  ]);
}

function trainedIds(trajectory: Trajectory): number[] {
  return trajectory.traces.flatMap((trace) => trace.response_ids.filter((_, i) => trace.loss_mask[i] === 1));
}

describe('a constrained reply', () => {
  for (const strategy of ['prefix_merging', 'per_request', 'step']) {
    it(`is not trained by ${strategy} unless the task requests it, and its positions are named`, () => {
      const t = new Transcript();
      const h0 = t.start();
      const c0 = t.call(h0);
      const h1 = t.after(h0, c0);
      const c1 = t.call(h1, { constraint: 'tool_choice' });
      t.call(t.after(h1, c1));
      const masked = build(t.completions, {}, strategy);
      expect(masked.audit).toMatchObject({
        tokens: { sampled: 15, trained: 10, excluded: { constrained: 5 }, constrained: 0 },
        completions: { trained: 2, excluded: { constrained: 1 } },
      });
      expect(trainedIds(masked.trajectory)).not.toContain(c1.responseIds[0]);
      const trained = build(t.completions, { constrained: 'train' }, strategy);
      expect(trained.audit.tokens).toEqual({ sampled: 15, trained: 15, excluded: {}, constrained: 5 });
      const named = (built: Built): number[][] =>
        built.trajectory.traces.flatMap(({ constrained_spans: spans, response_ids: ids }) =>
          spans.map(({ start, end }) => ids.slice(start, end)),
        );
      expect(named(trained)).toEqual([[...c1.responseIds]]);
      expect(named(masked)).toEqual(strategy === 'prefix_merging' ? [[...c1.responseIds]] : []);
    });
  }

  it('that is the only one leaves the session without traces', () => {
    const t = new Transcript();
    t.call(t.start(), { constraint: 'response_format' });
    const { trajectory, audit } = build(t.completions);
    expect(trajectory.traces).toEqual([]);
    expect(audit.tokens.excluded).toEqual({ constrained: 5 });
  });
});

describe('prefix merging', () => {
  it('builds one exact trace from a plain session and masks the tokens that were not sampled', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0, { versionSpans: [{ version: 'v1', start: 0, end: 5 }] });
    const h1 = t.after(h0, c0);
    const c1 = t.call(h1, {
      finishReason: 'length',
      versionSpans: [
        { version: 'v1', start: 0, end: 2 },
        { version: 'v2', start: 2, end: 5 },
      ],
    });
    const { trajectory, audit } = build(t.completions);
    const between = [...c1.promptIds.subarray(c0.promptIds.length + 5)];
    const zeros = between.map(() => 0);
    expect(trajectory.traces).toHaveLength(1);
    expect(trajectory.traces[0]).toMatchObject({
      trace_id: 'ses.1.0',
      prompt_ids: [...c0.promptIds],
      response_ids: [...c0.responseIds, ...between, ...c1.responseIds],
      loss_mask: [1, 1, 1, 1, 1, ...zeros, 1, 1, 1, 1, 1],
      version_spans: [
        { version: 'v1', start: 0, end: 5 },
        { version: 'v1', start: 5 + zeros.length, end: 7 + zeros.length },
        { version: 'v2', start: 7 + zeros.length, end: 10 + zeros.length },
      ],
      prompt_messages: h0.messages,
      response_messages: [c0.message, h1.messages.at(-1), c1.message],
      finish_reason: 'length',
      reward: 1,
      completion_ids: ['c0', 'c1'],
      metadata: { call_kind: 'main', thread: 'main', trace_count: 1, links: ['root', 'exact'], continues: null },
    });
    const logprobs = [...c0.responseLogprobs, ...zeros, ...c1.responseLogprobs];
    expect(trajectory.traces[0]?.response_logprobs.map(Math.fround)).toEqual(logprobs);
    expect(audit).toEqual({
      tokens: { sampled: 10, trained: 10, excluded: {}, constrained: 0 },
      completions: { recorded: 2, trained: 2, excluded: {} },
      links: { root: 1, exact: 1, rerendered: 0, fork: 0 },
      drift: {},
      exact_context_share: 1,
      context_images: 0,
      rendered_for_images: 0,
      context_special_tokens: 0,
    });
  });

  it('(a, n, o, q) splits at a re-rendered turn, and merges it when configured to', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0);
    const kept = [...c0.responseIds.subarray(2, 4)];
    const h1 = t.after(h0, c0, kept);
    const c1 = t.call(h1);
    t.call(t.after(h1, c1));
    expect(links(t.completions)).toEqual([
      ['root', null],
      ['rerendered', 'c0'],
      ['exact', 'c1'],
    ]);
    expect(chains(t.completions)).toEqual([['c0'], ['c1', 'c2']]);
    expect(build(t.completions).audit.exact_context_share).toBe(1);
    const { trajectory, audit } = build(t.completions, { on_drift: 'merge' });
    const [trace] = trajectory.traces;
    expect(trajectory.traces).toHaveLength(1);
    // The trace's response has the first reply as sampled, and then only those ids of the next prompt that follow the re-rendered turn.
    expect(trace?.response_ids.slice(0, 6)).toEqual([...c0.responseIds, 13]);
    expect(trainedIds(trajectory)).toEqual(t.completions.flatMap((c) => [...c.responseIds]));
    expect(audit.exact_context_share).toBe(5 / 15);
    expect(trace?.metadata.links).toEqual(['root', 'rerendered', 'exact']);
  });

  it('(b) separates parallel calls on one history and trains their shared tokens once', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0);
    const h1 = t.after(h0, c0);
    const c1 = t.call(h1);
    t.call(h1);
    t.call(t.after(h1, c1));
    expect(links(t.completions)).toEqual([
      ['root', null],
      ['exact', 'c0'],
      ['exact', 'c0'],
      ['exact', 'c1'],
    ]);
    expect(chains(t.completions)).toEqual([['c0', 'c1', 'c3'], ['c2']]);
    const { trajectory } = build(t.completions);
    expect(trajectory.traces[1]).toMatchObject({
      prompt_ids: [...(t.completions[2]?.promptIds ?? [])],
      metadata: { continues: 'c0', trace_count: 2, trace_index: 1 },
    });
  });

  it('(b) accepts results of parallel tool calls in one turn or in several', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0);
    const h1 = t.turn(t.turn(t.after(h0, c0), 'tool'), 'tool');
    t.call(h1);
    const { trajectory } = build(t.completions);
    expect(trajectory.traces).toHaveLength(1);
    expect(trajectory.traces[0]?.response_messages.map((m) => m.role)).toEqual([
      'assistant',
      'tool',
      'tool',
      'tool',
      'assistant',
    ]);
  });

  it('(c) separates interleaved threads in any order', () => {
    const t = new Transcript();
    const system = t.fresh(2);
    const main = t.start(system);
    const sub = t.start(system);
    const m0 = t.call(main);
    const s0 = t.call(sub, { thread: 'sub', callKind: 'subagent' });
    const m1 = t.after(main, m0);
    const s1 = t.after(sub, s0);
    t.call(s1, { thread: 'sub', callKind: 'subagent' });
    t.call(m1);
    expect(links(t.completions)).toEqual([
      ['root', null],
      ['root', null],
      ['exact', 'c1'],
      ['exact', 'c0'],
    ]);
    const expected = [
      ['c0', 'c3'],
      ['c1', 'c2'],
    ];
    expect(chains(t.completions)).toEqual(expected);
    expect(chains(t.completions.toReversed())).toEqual(expected);
  });

  it('(c) does not continue another thread, although the ids would match', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0);
    t.call(t.after(h0, c0), { thread: 'sub' });
    expect(links(t.completions)).toEqual([
      ['root', null],
      ['fork', 'c0'],
    ]);
    expect(chains(t.completions)).toEqual([['c0'], ['c1']]);
  });

  it('(d) links overlapping requests by their content, not by the time of their replies', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0);
    const h1 = t.after(h0, c0);
    const c1 = t.call(h1);
    const c2 = t.call(h1);
    // Two later requests continue the replies c1 and c2, in the opposite order: the first request continues c2, the second one c1.
    t.call(t.after(h1, c2));
    t.call(t.after(h1, c1));
    expect(links(t.completions).slice(3)).toEqual([
      ['exact', 'c2'],
      ['exact', 'c1'],
    ]);
    expect(chains(t.completions)).toEqual([
      ['c0', 'c1', 'c4'],
      ['c2', 'c3'],
    ]);
    expect(chains(t.completions, { fork_owner: 'first' })[0]).toEqual(['c0', 'c1', 'c4']);
  });

  it('(e) starts a new trace after a compaction and keeps the earlier one', () => {
    const t = new Transcript();
    const system = t.fresh(2);
    const h0 = t.start(system);
    const c0 = t.call(h0);
    const h1 = t.after(h0, c0, undefined, 'user');
    t.call(h1, { callKind: 'compaction' });
    t.call(t.start(system));
    expect(links(t.completions).map(([link]) => link)).toEqual(['root', 'exact', 'root']);
    expect(chains(t.completions)).toEqual([['c0', 'c1'], ['c2']]);
  });

  it('(h) excludes an abandoned identical retry and keeps all later completions', () => {
    const t = new Transcript();
    const h0 = t.start();
    t.call(h0, { abandoned: true });
    const c1 = t.call(h0);
    const h1 = t.after(h0, c1);
    t.call(h1, { abandoned: true });
    const c3 = t.call(h1);
    t.call(t.after(h1, c3));
    expect(chains(t.completions)).toEqual([['c1', 'c3', 'c4']]);
    expect(build(t.completions).audit).toMatchObject({
      tokens: { sampled: 25, trained: 15, excluded: { abandoned: 10 } },
      completions: { recorded: 5, trained: 3, excluded: { abandoned: 2 } },
      links: { root: 1, fork: 1, exact: 3, rerendered: 0 },
    });
    expect(chains(t.completions, { include: ['abandoned'] })).toEqual([['c0'], ['c1', 'c3', 'c4'], ['c2']]);
  });

  it('(h) trains a reply that is marked abandoned or undelivered but was continued', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0, { abandoned: true });
    t.call(h0, { undelivered: true });
    t.call(t.after(h0, c0));
    expect(chains(t.completions)).toEqual([['c0', 'c2']]);
    expect(build(t.completions).audit.tokens.excluded).toEqual({ undelivered: 5 });
  });

  it('links a re-rendered turn to the reply that it repeats, otherwise to the one that is not abandoned', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0);
    t.call(h0);
    t.call(t.after(h0, c0, t.fresh(3)));
    expect(links(t.completions)[2]).toEqual(['rerendered', 'c0']);
    const u = new Transcript();
    const g0 = u.start();
    const d0 = u.call(g0);
    u.call(g0, { abandoned: true });
    const other = { ...d0, message: { role: 'assistant', content: 'edited' } as const };
    u.call(u.after(g0, other, u.fresh(3)));
    expect(links(u.completions)[2]).toEqual(['rerendered', 'c0']);
  });

  it('distinguishes replies with the same ids by their tool-call ids', () => {
    const t = new Transcript();
    const h0 = t.start();
    const call = (id: string) => ({
      role: 'assistant' as const,
      content: null,
      tool_calls: [{ id, type: 'function' as const, function: { name: 'f', arguments: '{}' } }],
    });
    const response = [...t.fresh(2), CLOSE];
    const c0 = t.call(h0, { response, message: call('a') });
    const c1 = t.call(h0, { response, message: call('b') });
    t.call(t.after(h0, c0));
    t.call(t.after(h0, c1));
    expect(links(t.completions).slice(2)).toEqual([
      ['exact', 'c0'],
      ['exact', 'c1'],
    ]);
  });

  it('(j) does not continue across a change of tools', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0);
    const toolsText = '[{"type":"function","function":{"name":"grep"}}]';
    const h1 = t.after(h0, c0);
    const c1 = t.call(h1, { toolsText });
    t.call(t.after(h1, c1), { toolsText });
    expect(links(t.completions)).toEqual([
      ['root', null],
      ['fork', 'c0'],
      ['exact', 'c1'],
    ]);
    const { trajectory } = build(t.completions);
    expect(trajectory.traces.map((trace) => trace.tools)).toEqual([[], JSON.parse(toolsText)]);
  });

  it('(j) makes the completion a root when the template renders the tools first', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0);
    const moved = t.after(h0, c0);
    t.call({ ...moved, ids: [10, ...t.fresh(5), ...moved.ids.slice(1)] }, { toolsText: '[]  ' });
    expect(links(t.completions)[1]).toEqual(['root', null]);
  });

  it('(k) never learns a turn close from a stop string', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0, { response: [...t.fresh(2), 55], stop: { kind: 'string', text: 'END' } });
    const h1 = t.after(h0, c0, [55, 55]);
    t.call(h1, { stop: { kind: 'string', text: 'END' } });
    expect(buildGraph(t.completions).nodes[1]).toMatchObject({ link: 'rerendered', suffixStart: null });
    expect([...buildGraph(t.completions).closeIds]).toEqual([]);
    // Without an end-of-turn id, the builder does not guess where the re-rendered turn ends. It starts a new trace and still trains all
    // tokens.
    expect(chains(t.completions, { on_drift: 'merge' })).toEqual([['c0'], ['c1']]);
  });

  it('(l) finds the end of a re-rendered turn by any of several close ids', () => {
    const t = new Transcript();
    const h0 = t.start();
    const CALL = 3;
    const c0 = t.call(h0, { response: [...t.fresh(3), CALL] });
    const ids = [...h0.ids, 12, ...t.fresh(2), CALL, 13, ...t.fresh(2), CLOSE];
    const h1 = { ids, messages: [...h0.messages, c0.message, { role: 'user' as const, content: 'x' }] };
    t.call(h1);
    const graph = buildGraph(t.completions);
    expect([...(graph.closeIds.get('policy') ?? [])].sort()).toEqual([CLOSE, CALL]);
    expect(graph.nodes[1]?.suffixStart).toBe(h0.ids.length + 4);
    const { trajectory } = build(t.completions, { on_drift: 'merge' });
    expect(trajectory.traces[0]?.response_ids.slice(0, 5)).toEqual([...c0.responseIds, 13]);
  });

  it('(m) adds the close of a reply that was cut by length to the context', () => {
    const t = new Transcript();
    const h0 = t.start();
    const cut = { response: t.fresh(3), finishReason: 'length', stop: null } as const;
    const c0 = t.call(h0, cut);
    t.call(t.after(h0, c0));
    expect(links(t.completions)[1]).toEqual(['exact', 'c0']);
    const [trace] = build(t.completions).trajectory.traces;
    expect(trace?.response_ids.slice(0, 5)).toEqual([...c0.responseIds, CLOSE, 13]);
    expect(trace?.loss_mask.slice(0, 5)).toEqual([1, 1, 1, 0, 0]);
    // In the second session `u`, the first reply is cut off by its length. The next prompt contains this reply with other ids than were
    // sampled. The trace has the sampled ids, followed by the end-of-turn id from the next prompt.
    const u = new Transcript();
    const g0 = u.start();
    const d0 = u.call(g0, { response: u.fresh(3), finishReason: 'length', stop: null });
    u.call(u.after(g0, d0, u.fresh(2)));
    const [merged] = build(u.completions, { on_drift: 'merge' }).trajectory.traces;
    expect(merged?.response_ids.slice(0, 5)).toEqual([...d0.responseIds, CLOSE, 13]);
  });

  it('(s) trains both of two samples of one prompt', () => {
    const t = new Transcript();
    const h0 = t.start();
    t.call(h0);
    t.call(h0);
    expect(links(t.completions)).toEqual([
      ['root', null],
      ['fork', 'c0'],
    ]);
    expect(chains(t.completions)).toEqual([['c0'], ['c1']]);
    expect(build(t.completions).audit.tokens).toEqual({ sampled: 10, trained: 10, excluded: {}, constrained: 0 });
  });

  it('never continues a reply without a token', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0, { response: [], finishReason: 'abort' });
    t.call(t.after(h0, c0));
    expect(links(t.completions)[1]).toEqual(['fork', 'c0']);
    expect(build(t.completions).audit.completions.excluded).toEqual({ empty: 1 });
  });

  it('(v) keeps 200 turns in one exact trace', () => {
    const t = new Transcript();
    let history = t.start();
    for (let turn = 0; turn < 200; turn++) history = t.after(history, t.call(history));
    const { trajectory, audit } = build(t.completions);
    expect(trajectory.traces).toHaveLength(1);
    expect(trainedIds(trajectory)).toEqual(t.completions.flatMap((c) => [...c.responseIds]));
    expect(audit).toMatchObject({ links: { root: 1, exact: 199 }, exact_context_share: 1 });
  });

  it('trains shared completions in the chain that fork_owner selects', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0);
    const h1 = t.after(h0, c0);
    const c1 = t.call(h1);
    t.call(h1, { response: [...t.fresh(20), CLOSE] });
    const c3 = t.call(h1);
    t.call(h1, { callKind: 'compaction' });
    t.call(t.after(h1, c3));
    // The chain through c1 gets the latest completion. That completion is a compaction and not an answer, so `final_answer` selects the
    // chain through c3.
    t.call(t.after(h1, c1), { callKind: 'compaction' });
    const owner = (fork_owner: string) => chains(t.completions, { fork_owner }).find((chain) => chain.includes('c0'));
    expect(owner('final_answer')).toEqual(['c0', 'c3', 'c5']);
    expect(owner('longest')).toEqual(['c0', 'c2']);
    expect(owner('first')).toEqual(['c0', 'c1', 'c6']);
  });

  it('links a prompt that is a prefix of an earlier prompt', () => {
    const t = new Transcript();
    const h0 = t.start();
    const history = t.turn({ ids: [...h0.ids, 12, ...t.fresh(40), CLOSE], messages: h0.messages }, 'user');
    t.call(history);
    t.call(h0);
    t.call(history);
    t.call(t.turn(history, 'user'));
    expect(links(t.completions)).toEqual([
      ['root', null],
      ['fork', 'c0'],
      ['rerendered', 'c1'],
      ['rerendered', 'c1'],
    ]);
  });

  it('excludes auxiliary calls, but keeps a continued one as context', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0);
    const h1 = t.after(h0, c0);
    const c1 = t.call(h1, { auxiliary: true, callKind: 'title' });
    const c2 = t.call(t.after(h1, c1));
    t.call(h1, { auxiliary: true });
    const { trajectory, audit } = build(t.completions);
    expect(trajectory.traces).toHaveLength(1);
    expect(trainedIds(trajectory)).toEqual([...c0.responseIds, ...c2.responseIds]);
    expect(audit).toMatchObject({ tokens: { excluded: { auxiliary: 10 } }, exact_context_share: 1 });
    expect(chains(t.completions, { include: ['auxiliary'] })).toEqual([['c0', 'c1', 'c2'], ['c3']]);
  });

  it('starts a trace with the first trained reply', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0, { auxiliary: true });
    const c1 = t.call(t.after(h0, c0));
    const { trajectory, audit } = build(t.completions);
    expect(trajectory.traces).toMatchObject([
      { prompt_ids: [...c1.promptIds], response_ids: [...c1.responseIds], metadata: { continues: 'c0' } },
    ]);
    expect(audit.exact_context_share).toBe(1);
  });

  it('builds no trace without completions', () => {
    const { trajectory, audit } = build([]);
    expect(trajectory.traces).toEqual([]);
    expect(audit.exact_context_share).toBeNull();
  });
});

describe('per request', () => {
  it('builds a separate trace for each trainable completion', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0);
    t.call(t.after(h0, c0));
    t.call(h0, { auxiliary: true });
    const { trajectory, audit } = build(t.completions, {}, 'per_request');
    expect(trajectory.traces.map((trace) => [trace.completion_ids, trace.prompt_ids])).toEqual(
      t.completions.slice(0, 2).map((c) => [[c.completionId], [...c.promptIds]]),
    );
    expect(audit).toMatchObject({ tokens: { trained: 10, excluded: { auxiliary: 5 } }, exact_context_share: 1 });
  });
});
