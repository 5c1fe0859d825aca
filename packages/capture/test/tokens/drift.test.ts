import type { AssistantMessage, ChatMessage } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import type { Completion } from '../../src/tokens/completion.ts';
import { classifyDrift } from '../../src/tokens/drift.ts';
import { proveSameText } from '../../src/tokens/drift-proof.ts';
import { buildGraph } from '../../src/tokens/graph.ts';
import { buildTrajectory } from '../../src/tokens/trajectory.ts';
import { CALL_CLOSE, CLOSE } from './session.ts';
import { Transcript } from './transcript.ts';

function calling(args: string, over: Partial<AssistantMessage> = {}): AssistantMessage {
  const call = { id: 'a', type: 'function' as const, function: { name: 'f', arguments: args } };
  return { role: 'assistant', content: 'so', tool_calls: [call], ...over };
}

const thinking = { reasoning_content: 'hm' };
const tool: ChatMessage = { role: 'tool', tool_call_id: 'a', content: 'x' };

describe('the class of a drift', () => {
  it.each<[string, AssistantMessage, ChatMessage[], boolean | null, string]>([
    ['retokenized with a proof', calling('{}'), [calling('{}'), tool], true, 'retokenized'],
    ['retokenized whatever id the call has', calling('{}'), [calling('{}', {})], true, 'retokenized'],
    [
      'retokenized with reasoning that was kept',
      calling('{}', thinking),
      [calling('{}', thinking)],
      true,
      'retokenized',
    ],
    ['reserialized without a proof', calling('{}'), [calling('{}')], null, 'reserialized'],
    ['reserialized when the texts differ', calling('{}'), [calling('{}')], false, 'reserialized'],
    [
      'reserialized with keys in another order',
      calling('{"a":1,"b":[2]}'),
      [calling('{ "b":[2], "a":1.0}')],
      false,
      'reserialized',
    ],
    [
      'retokenized when the template reserializes arguments',
      calling('{"a":1}'),
      [calling('{"a": 1}')],
      true,
      'retokenized',
    ],
    ['reserialized with other white space', calling('{}', { content: 'so\n' }), [calling('{}')], null, 'reserialized'],
    [
      'reserialized with no text for empty text',
      calling('{}', { content: '' }),
      [calling('{}', { content: null })],
      null,
      'reserialized',
    ],
    ['reasoning_dropped by the harness', calling('{}', thinking), [calling('{}')], true, 'reasoning_dropped'],
    [
      'reasoning_dropped by the harness, with reserialized arguments',
      calling('{"a":1}', thinking),
      [calling('{"a": 1}')],
      null,
      'reasoning_dropped',
    ],
    [
      'reasoning_dropped by the template',
      calling('{}', thinking),
      [calling('{}', thinking)],
      false,
      'reasoning_dropped',
    ],
    [
      'reasoning_dropped without a proof',
      calling('{}', thinking),
      [calling('{}', thinking)],
      null,
      'reasoning_dropped',
    ],
    [
      'reserialized when reasoning is there and arguments differ',
      calling('{"a":1}', thinking),
      [calling('{"a": 1}', thinking)],
      null,
      'reserialized',
    ],
    ['rewritten reasoning', calling('{}', thinking), [calling('{}', { reasoning_content: 'aha' })], true, 'rewritten'],
    ['rewritten with reasoning made up', calling('{}'), [calling('{}', thinking)], true, 'rewritten'],
    ['rewritten text', calling('{}'), [calling('{}', { content: 'no' })], true, 'rewritten'],
    ['rewritten arguments', calling('{"a":1}'), [calling('{"a":2}')], true, 'rewritten'],
    ['rewritten arguments that are not JSON', calling('{"a":'), [calling('{"a":}')], true, 'rewritten'],
    [
      'rewritten numbers that parse to the same double',
      calling('{"a":9007199254740993}'),
      [calling('{"a":9007199254740992}')],
      true,
      'rewritten',
    ],
    [
      'rewritten arguments nested too deeply',
      calling(`${'['.repeat(5000)}`),
      [calling(`${'['.repeat(5001)}`)],
      true,
      'rewritten',
    ],
    ['rewritten without the call', calling('{}'), [{ role: 'assistant', content: 'so' }], true, 'rewritten'],
    ['rewritten as no turn at all', calling('{}'), [tool], true, 'rewritten'],
    ['rewritten at the end', calling('{}'), [], true, 'rewritten'],
    [
      'retokenized in several messages',
      calling('{}', thinking),
      [
        { role: 'assistant', content: null, ...thinking },
        { role: 'assistant', content: 'so' },
        calling('{}', { content: null }),
        tool,
        { role: 'assistant', content: 'another turn' },
      ],
      true,
      'retokenized',
    ],
  ])('is %s', (_, made, asked, proof, drift) => {
    expect(classifyDrift(made, asked, () => proof)).toBe(drift);
  });

  it('requests no proof when the harness changed the turn', () => {
    const never = () => {
      throw new Error('asked');
    };
    expect(classifyDrift(calling('{}'), [calling('{"a":1}')], never)).toBe('rewritten');
    expect(classifyDrift(calling('{}', thinking), [calling('{}')], never)).toBe('reasoning_dropped');
  });
});

/**
 * Builds a session of two calls. The first reply is sampled as the ids `sampled`. The second prompt contains the ids `rendered` in their
 * place.
 */
function drifted(sampled: readonly number[], rendered: readonly number[]): Completion[] {
  const t = new Transcript();
  const h0 = t.start();
  const c0 = t.call(h0, { response: sampled });
  t.call(t.after(h0, c0, rendered));
  return t.completions;
}

/**
 * The text of each id of an invented tokenizer. The id 100 and the pair 101, 102 are two tokenizations of "ab". The id 200 is an incomplete
 * character.
 */
const TEXTS: Record<number, string> = { 100: 'ab', 101: 'a', 102: 'b', 103: 'c', 200: '\uFFFD' };
const decode = async (ids: Int32Array) => [...ids].map((id) => TEXTS[id]).join('');

async function driftOf(completions: readonly Completion[], decoder = decode, closeIds: number[] = []) {
  const sameText = await proveSameText(completions, closeIds, decoder);
  return buildGraph(completions, { sameText, closeIds }).nodes[1]?.drift;
}

describe('the proof of a drift', () => {
  it('compares the sampled with the rendered ids without the turn close', async () => {
    expect(await driftOf(drifted([100, CLOSE], [101, 102]))).toBe('retokenized');
    expect(await driftOf(drifted([100, CLOSE], [101, 103]))).toBe('reserialized');
    const asked: string[] = [];
    await driftOf(drifted([100, CLOSE], [101, 102]), async (ids) => `${asked.push(ids.join())}`);
    expect(asked.sort()).toEqual(['100', '101,102']);
  });

  it('finds the close by the ids of the template as well', async () => {
    const cut = drifted([100], [101, 102]).map((one) => ({ ...one, stop: null }));
    expect(await driftOf(cut)).toBe('reserialized');
    expect(await driftOf(cut, decode, [CLOSE])).toBe('retokenized');
  });

  it('needs no decoder when only the close differs', () => {
    const completions = drifted([100, CALL_CLOSE], [100]);
    const { nodes } = buildGraph(completions, { closeIds: [CLOSE] });
    expect(nodes[1]?.drift).toBe('retokenized');
  });

  it('is missing when the text has an incomplete character, or the engine does not answer', async () => {
    expect(await driftOf(drifted([100, 200, CLOSE], [101, 102, 200]))).toBe('reserialized');
    expect(await driftOf(drifted([100, CLOSE], [101, 102]), () => Promise.reject(new Error('gone')))).toBe(
      'reserialized',
    );
  });

  it('does not let an engine decode an empty list', async () => {
    const asked: number[] = [];
    const decoder = async (ids: Int32Array) => `${asked.push(ids.length)}`;
    expect(await driftOf(drifted([CLOSE], [101]), decoder)).toBe('reserialized');
    expect(asked).toEqual([1]);
  });

  it('is requested for a bounded number of turns, a few concurrently', async () => {
    const t = new Transcript();
    let history = t.start();
    for (let turn = 0; turn < 300; turn++) history = t.after(history, t.call(history), t.fresh(2));
    let running = 0;
    let most = 0;
    let asked = 0;
    const sameText = await proveSameText(t.completions, [], async () => {
      most = Math.max(most, ++running);
      asked++;
      await new Promise((resolve) => setImmediate(resolve));
      running--;
      return 'same';
    });
    expect([asked, most]).toEqual([512, 16]);
    const drifts = buildGraph(t.completions, { sameText }).nodes.map((node) => node.drift);
    expect(drifts.filter((drift) => drift === 'retokenized')).toHaveLength(256);
    expect(drifts.filter((drift) => drift === 'reserialized')).toHaveLength(43);
  });

  it('decides which turns are merged', async () => {
    const completions = drifted([100, CLOSE], [101, 102]);
    const chainsOf = (on_drift: string, sameText: boolean | null) => {
      const { json } = buildTrajectory({
        spec: { strategy: 'prefix_merging', config: { on_drift } },
        completions,
        graphOptions: { sameText: () => sameText },
        status: 'COMPLETED',
        reward: 1,
        error: null,
        metadata: {},
      });
      return JSON.parse(json.toString()).traces.map((trace: { completion_ids: string[] }) => trace.completion_ids);
    };
    expect(chainsOf('auto', true)).toEqual([['c0', 'c1']]);
    expect(chainsOf('auto', false)).toEqual([['c0'], ['c1']]);
    expect(chainsOf('auto', null)).toEqual([['c0'], ['c1']]);
    expect(chainsOf('split', true)).toEqual([['c0'], ['c1']]);
    expect(chainsOf('merge', null)).toEqual([['c0', 'c1']]);
  });
});

describe('a turn that is rendered together with the ids that begin a reply', () => {
  /** The ids of one line break, of two line breaks, and of a tag that opens the reasoning. */
  const [LINE, LINES, THINK] = [300, 301, 302];
  const texts: Record<number, string> = { ...TEXTS, [LINE]: '\n', [LINES]: '\n\n', [THINK]: '<think>' };

  /**
   * Builds a session of two calls. The first prompt ends with the ids `start`, its reply is sampled as the ids `sampled`, and the second
   * prompt has the ids `rendered` instead of both. `reply` and `returned` are the messages of the reply and of the second request.
   */
  function session(
    start: readonly number[],
    sampled: readonly number[],
    rendered: readonly number[],
    reply: AssistantMessage,
    returned: AssistantMessage = reply,
  ): Completion[] {
    const t = new Transcript();
    const history = t.start();
    const prompt = [...history.ids, 12, ...start];
    const first = t.call(history, { prompt, response: [...sampled, CLOSE], message: reply });
    const next = t.after(history, first, rendered, 'tool', [returned]);
    t.call(next, { prompt: [...next.ids, 12, ...start] });
    return t.completions;
  }

  async function secondOf(completions: readonly Completion[]) {
    const decoder = async (ids: Int32Array) => [...ids].map((id) => texts[id]).join('');
    return buildGraph(completions, { sameText: await proveSameText(completions, [], decoder) }).nodes[1];
  }

  const said: AssistantMessage = { role: 'assistant', content: '\nc' };

  it('is reasoning_dropped when the remaining text begins with a line break', async () => {
    const thought = { ...said, reasoning_content: 'ab' };
    const node = await secondOf(session([LINE], [100, LINE, 103], [LINES, 103], thought, said));
    expect(node).toMatchObject({ link: 'rerendered', drift: 'reasoning_dropped', forkOf: null });
  });

  it('is retokenized when the text is the same', async () => {
    const completions = session([LINE], [LINE, 103], [LINES, 103], said);
    const node = await secondOf(completions);
    expect(node).toMatchObject({ link: 'rerendered', drift: 'retokenized', forkOf: null });
    expect(node?.parent?.completion).toBe(completions[0]);
    expect(node?.suffixStart).toBe((completions[0]?.promptIds.length ?? 0) + 2);
  });

  it('is merged without losing a sampled id', async () => {
    const completions = session([LINE], [LINE, 103], [LINES, 103], said);
    const { json } = buildTrajectory({
      spec: { strategy: 'prefix_merging', config: {} },
      completions,
      graphOptions: { sameText: () => true },
      status: 'COMPLETED',
      reward: 1,
      error: null,
      metadata: {},
    });
    const { traces } = JSON.parse(json.toString());
    expect(traces).toMatchObject([{ completion_ids: ['c0', 'c1'] }]);
    expect(traces[0].response_ids.slice(0, 3)).toEqual([LINE, 103, CLOSE]);
  });

  it('is reasoning_dropped when the template opens the reasoning in prompts only', async () => {
    const thought: AssistantMessage = { role: 'assistant', content: 'c', reasoning_content: 'ab' };
    const node = await secondOf(session([LINE, THINK], [100, 103], [LINE, 103], thought));
    expect(node).toMatchObject({ link: 'rerendered', drift: 'reasoning_dropped' });
  });

  it('is rewritten when the harness changed it', async () => {
    const other: AssistantMessage = { role: 'assistant', content: '\na' };
    const node = await secondOf(session([LINE], [LINE, 103], [LINES, 101], said, other));
    expect(node).toMatchObject({ link: 'rerendered', drift: 'rewritten' });
  });

  it('continues the latest turn and not an earlier one', async () => {
    const t = new Transcript();
    const history = t.start();
    const first = t.call(history);
    const later = t.after(history, first);
    const second = t.call(later, { prompt: [...later.ids, 12, LINE], response: [LINE, 103, CLOSE], message: said });
    t.call(t.after(later, second, [LINES, 103]));
    const { nodes } = buildGraph(t.completions, { sameText: () => true });
    expect(nodes.map(({ link }) => link)).toEqual(['root', 'exact', 'rerendered']);
    expect(nodes[2]?.parent?.completion).toBe(second);
  });

  it('is a fork when the request has no assistant turn there', async () => {
    const t = new Transcript();
    const history = t.start();
    t.call(history, { prompt: [...history.ids, 12, LINE] });
    const edited = t.turn(history, 'user');
    t.call(edited);
    expect(buildGraph(t.completions).nodes.map(({ link }) => link)).toEqual(['root', 'fork']);
  });
});
