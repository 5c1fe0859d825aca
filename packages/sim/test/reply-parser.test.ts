import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type MessageDelta, ReplyParser, rawField } from '../src/reply-parser.ts';
import { VisibleText } from '../src/visible-text.ts';
import { bundledVocabulary } from '../src/vocabulary.ts';

const vocabulary = bundledVocabulary();

function parse(
  text: string,
  options: { insideThinking?: boolean; parseCalls?: boolean } = {},
  ids = vocabulary.encode(text),
) {
  const visible = new VisibleText(vocabulary, { stop: [], includeStop: false, skipSpecial: true });
  const parser = new ReplyParser({
    special: vocabulary.special,
    insideThinking: options.insideThinking ?? false,
    parseCalls: options.parseCalls ?? true,
    newCallId: (index) => `id${index}`,
  });
  const deltas: MessageDelta[] = [];
  for (const id of ids) {
    visible.push(id);
    deltas.push(parser.push(visible.release()));
  }
  deltas.push(parser.push(visible.finish()));
  return { ...parser.parsed, deltas, streamed: joined(deltas) };
}

/** Assembles the message of a stream from its deltas, as a client does. */
function joined(deltas: readonly MessageDelta[]) {
  const calls: { id: string; name: string; argumentsText: string }[] = [];
  for (const delta of deltas.flatMap((each) => each.calls ?? [])) {
    if ('name' in delta) calls[delta.index] = { id: delta.id, name: delta.name, argumentsText: '' };
    else {
      const call = calls[delta.index];
      if (call === undefined) throw new Error('argument text came before the name');
      call.argumentsText += delta.argumentsText;
    }
  }
  return {
    reasoning: deltas.map(({ reasoning }) => reasoning ?? '').join(''),
    content: deltas.map(({ content }) => content ?? '').join(''),
    calls,
  };
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

  it('returns argument text as sampled', () => {
    for (const text of [
      '{ "b": 1.0, "a": [1e5, -0.0] }',
      '{"x":"}\\"{", "10":1, "2":2}',
      '{"n":12345678901234567890}',
      'null',
    ]) {
      expect(parse(call(text)).calls[0]?.argumentsText).toBe(text);
    }
  });

  it('begins inside thinking when the prompt opened the block', () => {
    expect(parse('hm\n</think>\n\nDone.', { insideThinking: true })).toMatchObject({
      reasoning: 'hm\n',
      content: '\n\nDone.',
    });
    expect(parse('cut off', { insideThinking: true })).toMatchObject({ reasoning: 'cut off', content: null });
  });

  it('returns no content when a call is surrounded only by white space', () => {
    expect(parse(`<think>\nhm\n</think>\n\n${call('{}')}`).content).toBeNull();
    expect(parse(call('{}')).content).toBeNull();
    expect(parse('').content).toBe('');
  });

  it.each([
    ['not valid JSON', '<tool_call>\n{"name": "f", \n</tool_call>'],
    ['without arguments', '<tool_call>\n{"name": "f"}\n</tool_call>'],
    ['not an object', '<tool_call>\n[1]\n</tool_call>'],
    ['cut off', '<tool_call>\n{"name": "f", "arguments": {"a"'],
    ['empty', '<tool_call></tool_call>'],
    ['without a name', '<tool_call>\n{"name": 5, "arguments": {}}\n</tool_call>'],
    ['after a valid one', `${call('{}')}\n<tool_call>{</tool_call>`],
    ['before a valid one', `Text <tool_call>{</tool_call>${call('{}')}`],
  ])('shows a call that is %s as content', (_, text) => {
    expect(parse(text)).toMatchObject({ calls: [], content: text });
  });

  it('leaves calls in the content without tools, and ignores text that only resembles a delimiter', () => {
    expect(parse(call('{}'), { parseCalls: false }).content).toBe(call('{}'));
    // The parser must not see a delimiter here: these ids spell `<tool_call>` with ordinary tokens instead of the single delimiter token.
    const ids = [...vocabulary.encode('<tool'), ...vocabulary.encode('_call>x')];
    expect(parse('', {}, ids)).toMatchObject({ calls: [], content: '<tool_call>x' });
  });

  it('accepts a complete call without its closing delimiter', () => {
    const reply = parse('Text.\n<tool_call>\n{"name": "f", "arguments": {"a":1}}\n');
    expect(reply.content).toBe('Text.\n');
    expect(reply.calls).toEqual([{ id: 'id0', name: 'f', argumentsText: '{"a":1}' }]);
  });

  it('drops text after valid calls', () => {
    const reply = parse(`Before.\n${call('{}')}\nBehind.`);
    expect(reply.content).toBe('Before.\n');
    expect(reply.streamed.content).toBe('Before.\n');
    expect(reply.calls.length).toBe(1);
  });

  it('streams the name first, with id and index, then the arguments in pieces', () => {
    const { deltas } = parse(`${call('{"a": [1, "}"]}')}\n${call('{}')}`);
    const news = deltas.flatMap((delta) => delta.calls ?? []);
    expect(news[0]).toEqual({ index: 0, id: 'id0', name: 'f' });
    const pieces = news.filter((piece) => 'argumentsText' in piece);
    expect(pieces.filter(({ index }) => index === 0).length).toBeGreaterThan(2);
    expect(news.findIndex(({ index }) => index === 1)).toBe(news.findLastIndex(({ index }) => index === 0) + 1);
    expect(news.find(({ index }) => index === 1)).toEqual({ index: 1, id: 'id1', name: 'f' });
  });

  it.each([
    ['cut off inside the arguments', '<tool_call>\n{"name": "f", "arguments": {"a": "b', '{"a": "b'],
    ['without the last brace', '<tool_call>\n{"name": "f", "arguments": {"a":1}\n</tool_call>', '{"a":1}'],
    ['with arguments that are not an object', call('"ls"'), '"ls"'],
    ['cut off after a space', '<tool_call>\n{"name": "f", "arguments": {"a": ', '{"a":'],
    ['cut off before the arguments', '<tool_call>\n{"name": "f", "argum', ''],
  ])('streams a call that is %s up to the cut', (_, text, argumentsText) => {
    expect(parse(text).streamed).toEqual({
      reasoning: '',
      content: '',
      calls: [{ id: 'id0', name: 'f', argumentsText }],
    });
  });

  it('streams nothing of the calls after one without a name', () => {
    expect(parse(`<tool_call>{}</tool_call>${call('{}')}`).streamed.calls).toEqual([]);
  });

  it('gives the same message in deltas as in one piece, except where a stream cannot know the rest', () => {
    const part = fc.constantFrom(
      '\n',
      ' ',
      'Text.',
      call('{"a": 1}'),
      call('[{"b": "\\"]"}, []]'),
      '<tool_call>{</tool_call>',
      '</think>',
      '<think>',
      '{"x"',
    );
    fc.assert(
      fc.property(fc.array(part, { maxLength: 8 }), fc.boolean(), (parts, insideThinking) => {
        const { reasoning, content, calls, streamed } = parse(parts.join(''), { insideThinking });
        expect(streamed.reasoning).toBe(reasoning ?? '');
        if (calls.length > 0) {
          expect(streamed.calls).toEqual(calls);
          expect(streamed.content.trim() === '' ? null : streamed.content).toBe(content);
        } else expect(content ?? '').toBe(streamed.content + (content ?? '').slice(streamed.content.length));
      }),
      { numRuns: 300 },
    );
  });

  it('gives the same message for any split of the stream into events', () => {
    const text = `<think>\nhm\n</think>\n\nText.\n${call('{"a": "é}"}')}\n${call('[1, 2]')}`;
    const ids = vocabulary.encode(text);
    const expected = parse(text).streamed;
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 1 }), (sizes) => {
        const visible = new VisibleText(vocabulary, { stop: [], includeStop: false, skipSpecial: true });
        const parser = new ReplyParser({
          special: vocabulary.special,
          insideThinking: false,
          parseCalls: true,
          newCallId: (index) => `id${index}`,
        });
        const deltas: MessageDelta[] = [];
        for (let at = 0, turn = 0; at < ids.length; turn++) {
          const size = sizes[turn % sizes.length] as number;
          for (const id of ids.slice(at, at + size)) visible.push(id);
          deltas.push(parser.push(visible.release()));
          at += size;
        }
        deltas.push(parser.push(visible.finish()));
        expect(joined(deltas)).toEqual(expected);
      }),
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
