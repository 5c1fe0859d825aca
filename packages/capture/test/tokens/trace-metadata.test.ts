import { type Trajectory, trajectorySchema } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import type { Completion } from '../../src/tokens/completion.ts';
import { buildTrajectory } from '../../src/tokens/trajectory.ts';
import { CLOSE } from './session.ts';
import { Transcript } from './transcript.ts';

type Options = {
  readonly strategy?: string;
  readonly config?: Record<string, unknown>;
  readonly reward?: number | null;
};

function build(
  completions: readonly Completion[],
  { strategy = 'prefix_merging', config = {}, reward = 1 }: Options = {},
) {
  const request = { spec: { strategy, config }, completions, reward, error: null, metadata: {} };
  const { json } = buildTrajectory({ ...request, status: 'COMPLETED' });
  return trajectorySchema.parse(JSON.parse(json.toString())) satisfies Trajectory;
}

const capture = {
  mode: 'tokens',
  logprobs_mode: 'raw',
  thinking_retention: 'all',
  spliced_onto: null,
  rendered_because: 'first',
} as const;

describe('the metadata of a trace', () => {
  it('states how it was captured and that its context is exact', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0, { capture });
    t.call(t.after(h0, c0), { capture });
    expect(build(t.completions).traces[0]?.metadata).toEqual({
      call_kind: 'main',
      thread: 'main',
      model: 'policy',
      capture_mode: 'tokens',
      thinking_retention: 'all',
      logprobs_mode: 'raw',
      session_mixes: [],
      exact_context: true,
      context_images: 0,
      context_special_tokens: 0,
      auxiliary: false,
      trace_count: 1,
      trace_index: 0,
      credit: 'broadcast',
      credit_parts: 1,
      links: ['root', 'exact'],
      drift: [null, null],
      continues: null,
    });
  });

  it('states that the session mixes models or kinds of logprobs, in this trace or another', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0, { capture });
    t.call(t.after(h0, c0), { capture: { ...capture, logprobs_mode: 'processed', thinking_retention: 'template' } });
    t.call(t.start(), { capture, model: 'other' });
    // This call has another capture mode but sampled no token, so `capture_mode` must not be listed among the properties in which the
    // session is mixed.
    t.call(t.start(), { capture: { ...capture, mode: 'chat' }, response: [] });
    const [mixed, other] = build(t.completions).traces.map((trace) => trace.metadata);
    const session_mixes = ['model', 'logprobs_mode'];
    expect(mixed).toMatchObject({
      logprobs_mode: 'mixed',
      thinking_retention: 'mixed',
      model: 'policy',
      session_mixes,
    });
    expect(other).toMatchObject({ logprobs_mode: 'raw', capture_mode: 'tokens', model: 'other', session_mixes });
  });

  it('states that the context of a merged turn is not exact, and why', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0);
    t.call(t.after(h0, c0, t.fresh(2)));
    const [trace] = build(t.completions, { config: { on_drift: 'merge' } }).traces;
    expect(trace?.metadata).toMatchObject({ exact_context: false, drift: [null, 'reserialized'] });
  });

  it('states that the trace is auxiliary when such are trained, with a share of the reward like any other', () => {
    const t = new Transcript();
    t.call(t.start());
    t.call(t.start(), { auxiliary: true, callKind: 'title' });
    const { traces } = build(t.completions, { config: { include: ['auxiliary'], credit: 'divide' }, reward: 3 });
    expect(traces.map(({ reward, metadata }) => [reward, metadata.auxiliary, metadata.credit_parts])).toEqual([
      [1.5, false, 2],
      [1.5, true, 2],
    ]);
  });

  it('states its position in an episode, which drift does not end and a fork does', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0);
    const h1 = t.after(h0, c0);
    const c1 = t.call(h1, { abandoned: true });
    const c2 = t.call(h1);
    t.call(t.after(h1, c2, t.fresh(2)));
    t.call(t.after(h1, c0));
    const config = { fork_owner: 'first' };
    const { traces, audit } = build(t.completions, { strategy: 'step', config, reward: 0.5 });
    expect(
      traces.map(({ completion_ids, reward, metadata: m }) => [
        completion_ids.join(),
        m.trajectory_id,
        m.turn_index,
        m.last_step,
        m.step_reward,
        reward,
      ]),
    ).toEqual([
      ['c0', 'ses.1.e0', 0, false, 0, 0.5],
      ['c2', 'ses.1.e0', 1, false, 0, 0.5],
      ['c3', 'ses.1.e0', 2, true, 0.5, 0.5],
      ['c4', 'ses.1.e1', 0, true, 0.5, 0.5],
    ]);
    expect(traces.map((trace) => trace.prompt_ids)).toEqual(
      t.completions.filter((one) => one !== c1).map((one) => [...one.promptIds]),
    );
    expect(audit).toMatchObject({ tokens: { excluded: { abandoned: 5 } }, exact_context_share: 1 });
    const unknown = build(t.completions, { strategy: 'step', reward: null, config: { credit: 'divide' } });
    expect(unknown.traces.map((trace) => [trace.reward, trace.metadata.step_reward])).toEqual(
      Array(4).fill([null, null]),
    );
    const shared = build(t.completions, { strategy: 'step', config: { credit: 'divide' } });
    expect(shared.traces.map((trace) => [trace.reward, trace.metadata.step_reward])).toEqual([
      [0.5, 0],
      [0.5, 0],
      [0.5, 0.5],
      [0.5, 0.5],
    ]);
  });
});

describe('the messages of a trace', () => {
  const reply = (over: object = {}) => ({
    role: 'assistant' as const,
    content: 'so',
    reasoning_content: 'hm',
    tool_calls: [{ id: 'a', type: 'function' as const, function: { name: 'f', arguments: '{}' } }],
    ...over,
  });
  const call = (over: object, inner: object = {}) => [
    { id: 'a', type: 'function' as const, ...over, function: { name: 'f', arguments: '{}', ...inner } },
  ];

  it.each([
    ['as it was', [reply()]],
    ['with another text', [reply({ content: 'no' })]],
    ['without its reasoning', [reply({ reasoning_content: undefined })]],
    ['without its call', [reply({ tool_calls: undefined })]],
    ['with another id of the call', [reply({ tool_calls: call({ id: 'b' }) })]],
    ['with another name of the call', [reply({ tool_calls: call({}, { name: 'g' }) })]],
    ['with other arguments', [reply({ tool_calls: call({}, { arguments: '{ }' }) })]],
    ['in two messages', [reply({ tool_calls: undefined }), reply({ content: null, reasoning_content: undefined })]],
  ])('contain a reply as it was sampled when the harness returns it %s', (_, given) => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0, { message: reply() });
    const h1 = t.after(h0, c0, undefined, 'tool', given);
    const c1 = t.call(h1);
    const [trace] = build(t.completions).traces;
    expect(trace?.prompt_messages).toEqual(h0.messages);
    expect(trace?.response_messages).toEqual([reply(), h1.messages.at(-1), c1.message]);
  });
});

describe('a session without tokens', () => {
  it('has no traces and counts the sampled tokens', () => {
    const t = new Transcript();
    const text = { ...capture, mode: 'text', logprobs_mode: null } as const;
    const usage = { prompt_tokens: 9, completion_tokens: 40, cached_tokens: null };
    t.call(t.start(), { prompt: [], response: [], capture: text, usage, stop: null });
    t.call(t.start(), {
      prompt: [],
      response: [],
      capture: text,
      usage: { ...usage, completion_tokens: 0 },
      stop: null,
    });
    t.call(t.start(), { response: [], stop: null });
    t.call(t.start(), { capture: { ...capture, logprobs_mode: null }, response: [...t.fresh(2), CLOSE] });
    for (const strategy of ['prefix_merging', 'per_request', 'step']) {
      const { traces, audit } = build(t.completions, { strategy });
      expect(traces).toEqual([]);
      expect(audit).toMatchObject({
        tokens: { sampled: 43, trained: 0, excluded: { no_tokens: 40, empty: 0, no_logprobs: 3 } },
        completions: { recorded: 4, trained: 0, excluded: { no_tokens: 1, empty: 2, no_logprobs: 1 } },
        exact_context_share: null,
      });
    }
  });
});
