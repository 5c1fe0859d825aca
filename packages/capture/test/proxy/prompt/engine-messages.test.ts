import type { ChatMessage } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { EngineMessages } from '../../../src/proxy/prompt/engine-messages.ts';
import type { MatchedTurn } from '../../../src/proxy/prompt/prefix-index.ts';

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
  new EngineMessages({ recorded: () => null, imageUrl: (url) => url }).texts(messages, texts, null);
const textsOf = (messages: readonly ChatMessage[]): string[] => messages.map((message) => JSON.stringify(message));

describe('the messages for an engine', () => {
  it('are the unchanged texts of the request when all arguments are valid JSON', () => {
    const messages: ChatMessage[] = [
      { role: 'user', content: '{' },
      calling('{"a": 1}', '', '"text"', '[1]'),
      { role: 'tool', tool_call_id: 'c0', content: '{' },
      { role: 'assistant', content: '{"' },
    ];
    const texts = textsOf(messages);
    expect(engineTexts(messages, texts)).toEqual(texts);
  });

  it('have broken arguments as a JSON string, and everything else unchanged', () => {
    const broken = '{"command": "ec\n';
    const messages: ChatMessage[] = [{ role: 'user', content: 'x' }, calling('{"a": 1}', broken), calling('{}')];
    const texts = textsOf(messages);
    const given = engineTexts(messages, texts);
    expect([given[0], given[2]]).toEqual([texts[0], texts[2]]);
    expect(given[1]).toBe(JSON.stringify(calling('{"a": 1}', JSON.stringify(broken))));
    expect(texts).toEqual(textsOf(messages));
  });

  it('have the engine’s ids in all results of a turn that the harness returned as several messages with ids of its own', () => {
    const own = (id: string): ChatMessage => ({
      role: 'assistant',
      content: null,
      tool_calls: [{ id, type: 'function', function: { name: 'run', arguments: '{}' } }],
    });
    const result = (id: string): ChatMessage => ({ role: 'tool', tool_call_id: id, content: 'done' });
    const messages = [own('mine-1'), own('mine-2'), result('mine-1'), result('mine-2')];
    const turn = { completion: { engineCallIds: ['theirs-1', 'theirs-2'] } } as unknown as MatchedTurn['turn'];
    const given = new EngineMessages({ recorded: () => null, imageUrl: (url) => url }).texts(
      messages,
      textsOf(messages),
      { turn, at: 0, count: 2, previous: null },
    );
    expect(given.slice(2)).toEqual(textsOf([result('theirs-1'), result('theirs-2')]));
  });

  it('have arguments that are costly to parse as a JSON string without parsing them', () => {
    const deep = `${'['.repeat(201)}${']'.repeat(201)}`;
    const wide = `[${'{},'.repeat(75_000)}{}]`;
    const messages = [calling(deep, '[1]'), calling(wide), calling(wide), calling('{}')];
    const asText = (text: string): string => JSON.stringify(text);
    // The second message exhausts the number of values that is allowed for all tool-call arguments of a request. All later arguments must
    // therefore be converted to strings without being parsed.
    const expected = [calling(asText(deep), '[1]'), calling(wide), calling(asText(wide)), calling(asText('{}'))];
    const given = engineTexts(messages, textsOf(messages));
    expect(textsOf(expected).map((text, index) => text === given[index])).toEqual([true, true, true, true]);
  });
});
