import { describe, expect, test } from 'vitest';
import { EngineMessages } from '../../../src/proxy/prompt/engine-messages.ts';
import type { ChatMessage } from '../../../src/schema/index.ts';

const calling = (...texts: string[]): ChatMessage => ({
  role: 'assistant',
  content: null,
  reasoning_content: 'hm',
  tool_calls: texts.map((text, index) => ({
    id: `c${index}`,
    type: 'function',
    function: { name: 'run', arguments: text },
  })),
});
const engineTexts = (messages: readonly ChatMessage[], texts: readonly string[]): readonly string[] =>
  new EngineMessages(() => null).texts(messages, texts, null);
const textsOf = (messages: readonly ChatMessage[]): string[] => messages.map((message) => JSON.stringify(message));

describe('the texts that an engine gets', () => {
  test('are those of the request, untouched, where every argument can be read', () => {
    const messages: ChatMessage[] = [
      { role: 'user', content: '{' },
      calling('{"a": 1}', '', '"text"', '[1]'),
      { role: 'tool', tool_call_id: 'c0', content: '{' },
      { role: 'assistant', content: '{"' },
    ];
    const texts = textsOf(messages);
    expect(engineTexts(messages, texts)).toEqual(texts);
  });

  test('have broken arguments as a string, which says the same, and all else as it was', () => {
    const broken = '{"command": "ec\n';
    const messages: ChatMessage[] = [{ role: 'user', content: 'x' }, calling('{"a": 1}', broken), calling('{}')];
    const texts = textsOf(messages);
    const given = engineTexts(messages, texts);
    expect([given[0], given[2]]).toEqual([texts[0], texts[2]]);
    expect(given[1]).toBe(JSON.stringify(calling('{"a": 1}', JSON.stringify(broken))));
    expect(texts).toEqual(textsOf(messages));
  });

  test('are not held up by arguments that are costly to read, which stay text', () => {
    const deep = `${'['.repeat(201)}${']'.repeat(201)}`;
    const wide = `[${'{},'.repeat(75_000)}{}]`;
    const messages = [calling(deep, '[1]'), calling(wide), calling(wide), calling('{}')];
    const asText = (text: string): string => JSON.stringify(text);
    // The first that is too much, and what follows it.
    const expected = [calling(asText(deep), '[1]'), calling(wide), calling(asText(wide)), calling(asText('{}'))];
    const given = engineTexts(messages, textsOf(messages));
    expect(textsOf(expected).map((text, index) => text === given[index])).toEqual([true, true, true, true]);
  });
});
