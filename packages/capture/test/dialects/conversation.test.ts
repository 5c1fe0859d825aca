import { getHeapStatistics, setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { MIB } from '@floe-rl/core';
import type { ChatMessage } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { Conversation, normalised } from '../../src/dialects/conversation.ts';
import { plainContext } from '../../src/dialects/dialect.ts';
import { decodeThoughtSignature, encodeThoughtSignature } from '../../src/dialects/opaque-fields.ts';
import { openaiChat } from '../../src/dialects/openai_chat/dialect.ts';

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

it('a note does not keep the long text that it was cut from', () => {
  const kept: (readonly string[])[] = [];
  collectGarbage();
  const before = getHeapStatistics().used_heap_size;
  for (let i = 0; i < 16; i++) {
    const conversation = new Conversation();
    conversation.note(`${i}${'x'.repeat(4 * MIB)} ignored`);
    kept.push(conversation.finish().adjusted);
  }
  collectGarbage();
  expect(kept.map(([note]) => note?.length)).toEqual(Array(16).fill(160));
  expect(getHeapStatistics().used_heap_size - before).toBeLessThan(16 * MIB);
});

describe('messages of a call without HTTP', () => {
  const image = { type: 'image_url' as const, image_url: { url: 'data:image/png;base64,AAAA' } };
  const text = (value: string) => ({ type: 'text' as const, text: value });
  const calls = ['a', 'b'].map((id) => ({
    id,
    type: 'function' as const,
    function: { name: 'look', arguments: '{}' },
  }));
  const messages: readonly ChatMessage[] = [
    { role: 'system', content: 'You look.' },
    { role: 'system', content: [text('Twice.')] },
    { role: 'user', content: [text('one'), text('two')] },
    { role: 'assistant', content: null, tool_calls: calls },
    { role: 'tool', tool_call_id: 'a', content: [text('the first'), image] },
    { role: 'tool', tool_call_id: 'b', content: 'the second' },
    { role: 'assistant', content: 'I see.' },
    { role: 'user', content: [image] },
    { role: 'system', content: 'Hurry.' },
  ];

  it('are those of the same call over HTTP, with images of tool results in a message after them', () => {
    const { messages: given, adjusted } = openaiChat.parseRequest({ model: 'm', messages }, plainContext());
    expect(normalised(messages)).toMatchObject({ messages: given, adjusted });
    expect(given.slice(3, 6)).toEqual([
      { role: 'tool', tool_call_id: 'a', content: 'the first' },
      { role: 'tool', tool_call_id: 'b', content: 'the second' },
      { role: 'user', content: [image] },
    ]);
    expect(adjusted).toContain('image of a tool result moved to a user message');
  });
});

describe('a signature of thinking', () => {
  it('is decoded as valid Unicode', () => {
    expect(decodeThoughtSignature(encodeThoughtSignature('cpl_1', 'Hm \ud83d'))?.text).toBe('Hm \ufffd');
  });
});
