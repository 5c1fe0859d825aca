import { describe, expect, it } from 'vitest';
import type { AssistantMessage, ChatMessage } from '../../src/schema/index.ts';
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

/** Builds a session in which the second prompt has the ids `rendered` where the first reply was sampled as `sampled`. */
function drifted(sampled: readonly number[], rendered: readonly number[]): Completion[] {
  const t = new Transcript();
  const h0 = t.start();
  const c0 = t.call(h0, { response: sampled });
  t.call(t.after(h0, c0, rendered));
  return t.completions;
}

/**
 * The text of each id of an invented tokenizer, in which 100 and the pair 101, 102 are two tokenizations of "ab". The text of 200 is an
 * incomplete character.
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
