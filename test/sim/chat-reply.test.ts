import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ReplyParser, rawField } from '../../src/sim/chat-reply.ts';
import { VisibleText } from '../../src/sim/visible-text.ts';
import { bundledVocabulary } from '../../src/sim/vocabulary.ts';

const vocabulary = bundledVocabulary();

function parse(
  text: string,
  options: { insideThinking?: boolean; parseCalls?: boolean } = {},
  ids = vocabulary.encode(text),
) {
  const visible = new VisibleText(vocabulary, { stop: [], includeStop: false, skipSpecial: true });
  let next = 0;
  const parser = new ReplyParser({
    special: vocabulary.special,
    insideThinking: options.insideThinking ?? false,
    parseCalls: options.parseCalls ?? true,
    newCallId: () => `id${next++}`,
  });
  const deltas = [];
  for (const id of ids) {
    visible.push(id);
    deltas.push(...parser.push(visible.release()));
  }
  deltas.push(...parser.push(visible.finish()), ...parser.finish());
  return { ...parser.parsed, deltas };
}

const call = (argumentsText: string): string =>
  `<tool_call>\n{"name": "f", "arguments": ${argumentsText}}\n</tool_call>`;

describe('the reply parser', () => {
  it('splits reasoning, content and calls', () => {
    const reply = parse(`<think>\nhm\n</think>\n\nText.\n${call('{"a":1}')}\n${call('{}')}`);
    expect(reply.reasoning).toBe('\nhm\n');
    expect(reply.content).toBe('\n\nText.\n');
    expect(reply.calls).toEqual([
      { id: 'id0', name: 'f', argumentsText: '{"a":1}' },
      { id: 'id1', name: 'f', argumentsText: '{}' },
    ]);
  });

  it('hands out argument text as sampled', () => {
    for (const text of [
      '{ "b": 1.0, "a": [1e5, -0.0] }',
      '{"x":"}\\"{", "10":1, "2":2}',
      '{"n":12345678901234567890}',
      'null',
    ]) {
      expect(parse(call(text)).calls[0]?.argumentsText).toBe(text);
    }
  });

  it('begins inside thinking when the prompt opened it', () => {
    expect(parse('hm\n</think>\n\nDone.', { insideThinking: true })).toMatchObject({
      reasoning: 'hm\n',
      content: '\n\nDone.',
    });
    expect(parse('cut off', { insideThinking: true })).toMatchObject({ reasoning: 'cut off', content: null });
  });

  it('has no content when there is only white space around a call', () => {
    expect(parse(`<think>\nhm\n</think>\n\n${call('{}')}`).content).toBeNull();
    expect(parse(call('{}')).content).toBeNull();
    expect(parse('').content).toBe('');
  });

  it.each([
    ['no JSON', '<tool_call>\n{"name": "f", \n</tool_call>'],
    ['no arguments', '<tool_call>\n{"name": "f"}\n</tool_call>'],
    ['no object', '<tool_call>\n[1]\n</tool_call>'],
    ['not closed', '<tool_call>\n{"name": "f", "arguments": {}}'],
  ])('shows a call that is %s as content', (_, text) => {
    expect(parse(text)).toMatchObject({ calls: [], content: text });
  });

  it('leaves calls alone without tools, and ignores text that only looks like a delimiter', () => {
    expect(parse(call('{}'), { parseCalls: false }).content).toBe(call('{}'));
    // "<tool" and "_call>" encoded apart are ordinary tokens.
    const ids = [...vocabulary.encode('<tool'), ...vocabulary.encode('_call>x')];
    expect(parse('', {}, ids)).toMatchObject({ calls: [], content: '<tool_call>x' });
  });

  it('gives the same message in deltas as in one piece', () => {
    const part = fc.constantFrom(
      '\n',
      ' ',
      'Text.',
      call('{"a": 1}'),
      '<tool_call>{</tool_call>',
      '</think>',
      '<think>',
      '{"x"',
    );
    fc.assert(
      fc.property(fc.array(part, { maxLength: 8 }), fc.boolean(), (parts, insideThinking) => {
        const { deltas, reasoning, content, calls } = parse(parts.join(''), { insideThinking });
        const joined = (key: string): string =>
          deltas.map((delta) => (delta as Record<string, string>)[key] ?? '').join('');
        expect(joined('content')).toBe(content ?? '');
        expect(joined('reasoning')).toBe(reasoning ?? '');
        expect(deltas.filter((delta) => 'call' in delta).length).toBe(calls.length);
      }),
      { numRuns: 300 },
    );
  });

  it('finds the raw text of a field in any JSON object', () => {
    fc.assert(
      fc.property(
        fc.dictionary(fc.string(), fc.jsonValue(), { minKeys: 1 }),
        fc.constantFrom(undefined, 1, '\t'),
        (object, indent) => {
          const text = JSON.stringify(object, null, indent);
          for (const [key, value] of Object.entries(object)) {
            expect(JSON.parse(rawField(text, key) ?? 'undefined')).toEqual(JSON.parse(JSON.stringify(value)));
          }
          expect(rawField(text, `${Object.keys(object).join('')}-`)).toBeNull();
        },
      ),
    );
  });
});
