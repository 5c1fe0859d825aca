import type { AssistantMessage } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { SentDeltas } from '../../../src/dialects/reply-stream.ts';
import { parseHermes } from '../../../src/engines/chat/hermes.ts';
import {
  assistantMessage,
  contentWithCalls,
  MessageBuilder,
  toolCallsFrom,
} from '../../../src/engines/chat/messages.ts';
import type { ReplyDelta } from '../../../src/reply.ts';

type Piece =
  | { readonly kind: 'reasoning'; readonly text: string }
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'call'; readonly index: number; readonly text: string };

function build(pieces: readonly Piece[]): { deltas: ReplyDelta[]; message: AssistantMessage } {
  const deltas: ReplyDelta[] = [];
  const builder = new MessageBuilder((delta) => deltas.push(delta));
  for (const piece of pieces) {
    if (piece.kind === 'reasoning') builder.addReasoning(piece.text);
    else if (piece.kind === 'text') builder.addText(piece.text);
    else if (piece.kind === 'call') builder.addCall(piece.index, `id${piece.index}`, 'f', piece.text);
    builder.flush();
  }
  return { deltas, message: builder.message() };
}

/**
 * Whether `pieces` contain further arguments of a tool call after the next tool call has begun. The deltas of the `MessageBuilder` then
 * lack these arguments.
 */
function goesBack(pieces: readonly Piece[], message: AssistantMessage): boolean {
  const { deltas } = build(pieces);
  const resumeFrom = deltas.filter(({ kind }) => kind === 'call').length;
  return (message.tool_calls ?? []).slice(0, Math.max(0, resumeFrom - 1)).some((call, index) => {
    const own = deltas.map((delta) => (delta.kind === 'arguments' && delta.index === index ? delta.text : ''));
    return own.join('') !== call.function.arguments;
  });
}

const order = { reasoning: 0, text: 1, call: 2, arguments: 2 };

describe('MessageBuilder', () => {
  const text = fc.string({ unit: fc.constantFrom('a', ' ', '\n', '\ud83d', '\ude00', 'é') });
  const piece = fc.oneof(
    fc.record({ kind: fc.constant('reasoning' as const), text }),
    fc.record({ kind: fc.constant('text' as const), text }),
    fc.record({ kind: fc.constant('call' as const), index: fc.nat(3), text }),
  );

  it('emits deltas in order that form the message together with the rest, in whatever order the pieces arrive', () => {
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 12 }), (pieces) => {
        const { deltas, message } = build(pieces);
        for (const [i, delta] of deltas.entries()) {
          const before = deltas[i - 1];
          if (before) expect(order[before.kind]).toBeLessThanOrEqual(order[delta.kind]);
          if (delta.kind === 'arguments') expect(before).toMatchObject({ index: delta.index });
        }
        const sent = new SentDeltas();
        for (const delta of deltas) sent.add(delta);
        if (goesBack(pieces, message)) {
          expect(() => sent.missingFrom(message)).toThrow('continued a tool call after the next one had begun');
          return;
        }
        const rest = sent.missingFrom(message);
        const opened = deltas.filter(({ kind }) => kind === 'call').length - 1;
        const late = rest.findIndex(({ kind }) => kind !== 'arguments');
        for (const delta of late < 0 ? rest : rest.slice(0, late)) expect(delta).toMatchObject({ index: opened });
        const all = [...deltas, ...rest];
        const joined = (kind: 'reasoning' | 'text'): string =>
          all.map((delta) => (delta.kind === kind ? delta.text : '')).join('');
        expect(joined('reasoning')).toBe(message.reasoning_content ?? '');
        expect(joined('text')).toBe(message.content ?? '');
        for (const [index, call] of (message.tool_calls ?? []).entries()) {
          const own = all.map((delta) => (delta.kind === 'arguments' && delta.index === index ? delta.text : ''));
          expect(own.join('')).toBe(call.function.arguments);
        }
      }),
    );
  });

  it('emits every piece immediately when the pieces arrive in order', () => {
    const { deltas } = build([
      { kind: 'reasoning', text: 'hm' },
      { kind: 'text', text: ' ' },
      { kind: 'text', text: 'Look.\n' },
      { kind: 'call', index: 0, text: '{"a"' },
      { kind: 'call', index: 0, text: ':1}' },
      { kind: 'text', text: '\n' },
      { kind: 'call', index: 1, text: '{}' },
    ]);
    expect(deltas).toEqual([
      { kind: 'reasoning', text: 'hm' },
      { kind: 'text', text: ' Look.\n' },
      { kind: 'call', index: 0, id: 'id0', name: 'f' },
      { kind: 'arguments', index: 0, text: '{"a"' },
      { kind: 'arguments', index: 0, text: ':1}' },
      { kind: 'call', index: 1, id: 'id1', name: 'f' },
      { kind: 'arguments', index: 1, text: '{}' },
    ]);
  });

  it('drops white space around calls, and never splits a surrogate pair', () => {
    const blank = build([
      { kind: 'text', text: '\n\n' },
      { kind: 'call', index: 0, text: '{}' },
      { kind: 'text', text: '\n' },
    ]);
    expect(blank.message.content).toBeNull();
    expect(blank.deltas.filter(({ kind }) => kind === 'text')).toEqual([]);
    const { deltas } = build([
      { kind: 'text', text: 'a\ud83d' },
      { kind: 'text', text: '\ude00' },
    ]);
    expect(deltas).toEqual([
      { kind: 'text', text: 'a' },
      { kind: 'text', text: '😀' },
    ]);
  });

  it('reports a call without id or name, and rejects a call whose predecessor is missing', () => {
    const builder = new MessageBuilder(() => {});
    expect(builder.addCall(0, 'a', '', '')).toBe(true);
    expect(builder.addCall(2, 'c', 'f', '')).toBe(false);
    expect(builder.incompleteCall()).toEqual({ index: 0, field: 'name' });
    builder.addCall(0, '', 'f', '{}');
    expect(builder.incompleteCall()).toBeNull();
  });

  it.each([
    { lacking: 'id', id: '', name: 'f' },
    { lacking: 'name', id: 'a', name: '' },
  ])('holds back the deltas of a call until its $lacking has arrived', ({ id, name }) => {
    const deltas: ReplyDelta[] = [];
    const builder = new MessageBuilder((delta) => deltas.push(delta));
    builder.addCall(0, id, name, '{');
    builder.flush();
    expect(deltas).toEqual([]);
    builder.addCall(0, 'a', 'f', '}');
    builder.flush();
    expect(deltas).toEqual([
      { kind: 'call', index: 0, id: 'a', name: 'f' },
      { kind: 'arguments', index: 0, text: '{}' },
    ]);
  });
});

const CALL = { id: 'c1', type: 'function', function: { name: 'look', arguments: '{"at": 1}' } } as const;

describe('assistantMessage', () => {
  it('leaves out empty fields', () => {
    expect(assistantMessage('', '', [])).toEqual({ role: 'assistant', content: '' });
    expect(assistantMessage('', '', [CALL])).toEqual({ role: 'assistant', content: null, tool_calls: [CALL] });
    expect(assistantMessage('Yes.', 'Hm.', [])).toEqual({
      role: 'assistant',
      content: 'Yes.',
      reasoning_content: 'Hm.',
    });
  });

  it("keeps the API's fields of a call, with the arguments unchanged", () => {
    const foreign = { ...CALL, index: 0, function: { ...CALL.function, parsed: { at: 1 } } };
    expect(toolCallsFrom([foreign])).toEqual([CALL]);
    expect(toolCallsFrom(null)).toEqual([]);
  });

  it('drops content that is only white space next to calls', () => {
    expect(contentWithCalls('\n\n ', [CALL])).toBe('');
    expect(contentWithCalls('\n\n ', [])).toBe('\n\n ');
    expect(contentWithCalls('\nSo. ', [CALL])).toBe('\nSo. ');
    const options = { thinking: false, opensThinking: false, calls: true, callId: () => 'c1' };
    const text = ' <tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>\n';
    expect(parseHermes(text, options)).toEqual({ role: 'assistant', content: null, tool_calls: [CALL] });
  });
});
