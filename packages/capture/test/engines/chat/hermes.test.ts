import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { parseHermes } from '../../../src/engines/chat/hermes.ts';

const parse = (text: string, over: object = {}) =>
  parseHermes(text, { thinking: true, opensThinking: false, calls: true, callId: (index) => `call_${index}`, ...over });
const call = (name: string, argumentsText: string) => ({
  type: 'function',
  function: { name, arguments: argumentsText },
});

describe('parseHermes', () => {
  it('returns plain text unchanged, with its white space', () => {
    expect(parse(' a <b> \n')).toEqual({ role: 'assistant', content: ' a <b> \n' });
  });

  it('keeps the sampled text of arguments', () => {
    const argumentsText = '{"10": 1,  "2": 1.0, "a": "\\u00e9 } </tool_call>", "b": [{"arguments": 0}]}';
    const { tool_calls, content } = parse(`<tool_call>\n{"name": "f", "arguments": ${argumentsText} }\n</tool_call>`);
    expect(tool_calls).toMatchObject([call('f', argumentsText)]);
    expect(content).toBeNull();
  });

  it('reads several calls, and text before, between and after them', () => {
    const one = '<tool_call>{"arguments":{},"name":"f"}</tool_call>';
    const { tool_calls, content } = parse(`First.\n${one}\n${one} then <tool_call>{"name":"g"}</tool_call>`);
    expect(tool_calls?.map(({ id, function: { name } }) => [id, name])).toEqual([
      ['call_0', 'f'],
      ['call_1', 'f'],
      ['call_2', 'g'],
    ]);
    expect(tool_calls?.[2]?.function.arguments).toBe('{}');
    expect(content).toBe('First.\n then ');
  });

  it.each([
    '<tool_call>{"name": "f", "arguments": {}',
    '<tool_call>{"name": "f", "arguments": {}}',
    '<tool_call>{"name": "f", "arguments": {}} x</tool_call>',
    '<tool_call>{"name": "f", "arguments": {a: 1}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
    '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "", "arguments": {}}</tool_call>',
    '<tool_call>["f", {}]</tool_call>',
    '<tool_call></tool_call>',
    '</tool_call><tool_call>',
    '{"name": "f", "arguments": {}}',
  ])('keeps an invalid call as text: %s', (text) => {
    expect(parse(text)).toEqual({ role: 'assistant', content: text });
  });

  it('reads a valid block after an invalid one', () => {
    const { tool_calls, content } = parse('<tool_call>{]</tool_call><tool_call>{"name":"f"}</tool_call>');
    expect(tool_calls).toMatchObject([call('f', '{}')]);
    expect(content).toBe('<tool_call>{]</tool_call>');
  });

  it('reads thinking between the tags, and no calls within it', () => {
    const draft = '<tool_call>{"name":"f"}</tool_call>';
    expect(parse(`<think>\n${draft}\n</think>\n\nNo.`)).toEqual({
      role: 'assistant',
      content: 'No.',
      reasoning_content: draft,
    });
    expect(parse('hm\n</think>\n\nNo.', { opensThinking: true })).toMatchObject({
      content: 'No.',
      reasoning_content: 'hm',
    });
    expect(parse('<think>\nnever clo')).toEqual({ role: 'assistant', content: '', reasoning_content: 'never clo' });
    expect(parse('<think>a</think>b', { thinking: false }).content).toBe('<think>a</think>b');
    expect(parse('b <think>a</think>').content).toBe('b <think>a</think>');
  });

  it('returns any call as it was written', () => {
    const value = fc.dictionary(fc.string(), fc.jsonValue());
    const calls = fc.array(fc.record({ name: fc.string({ minLength: 1 }), value }), { minLength: 1, maxLength: 4 });
    fc.assert(
      fc.property(calls, fc.constantFrom(0, 1, 2), (requestsTo, indent) => {
        const texts = requestsTo.map((one) => JSON.stringify(one.value, null, indent));
        const text = requestsTo
          .map(
            ({ name }, i) => `<tool_call>\n{"name": ${JSON.stringify(name)}, "arguments": ${texts[i]}}\n</tool_call>`,
          )
          .join('\n');
        expect(parse(text)).toMatchObject({
          content: null,
          tool_calls: requestsTo.map(({ name }, i) => call(name, texts[i] as string)),
        });
      }),
    );
  });

  it('parses any text in linear time without losing a call', () => {
    const piece = fc.constantFrom(
      '<tool_call>',
      '</tool_call>',
      '<think>',
      '</think>',
      '{',
      '}',
      '"',
      '\\',
      ':',
      ',',
      '[',
      'a',
      '\n',
      '{"name":"f"}',
    );
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 40 }), (pieces) => {
        const { content, tool_calls } = parse(pieces.join(''), { thinking: false });
        if (tool_calls === undefined) expect(content).toBe(pieces.join(''));
        else for (const { function: fn } of tool_calls) expect(typeof JSON.parse(fn.arguments)).toBe('object');
      }),
    );
    // Parsing this text would take minutes if each opening tag restarted the scan at the end of the tag.
    const hostile = '<tool_call>{"a'.repeat(200_000);
    expect(parse(hostile).content).toBe(hostile);
    const breaks = `a${'\n'.repeat(1_000_000)}b`;
    const message = parse(`<think>${breaks}</think>${breaks}<tool_call>{"name":"f"}</tool_call>`);
    expect(message).toMatchObject({ reasoning_content: breaks, content: breaks });
  });
});
