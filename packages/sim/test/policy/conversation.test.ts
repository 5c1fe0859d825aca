import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Conversation, parseConversation } from '../../src/policy/conversation.ts';
import { renderChat, type TemplateMessage } from '../../src/template.ts';
import { bundledVocabulary } from '../../src/vocabulary.ts';

const vocabulary = bundledVocabulary();
const read = (text: string): Conversation => parseConversation(vocabulary, vocabulary.encode(text));
const message = (role: TemplateMessage['role'], text: string): TemplateMessage => ({
  role,
  text,
  reasoning: null,
  toolCalls: [],
});

describe('parsing a prompt', () => {
  it('extracts the tools that were offered, without tools that the system text mentions', () => {
    const messages = [message('system', 'Mind:\n<tools>\n{"name": "ghost"}\n</tools>'), message('user', 'Go')];
    const tools = [{ type: 'function', function: { name: 'bash' } }];
    const text = renderChat(messages, { mode: 'open_think', tools, addGenerationPrompt: true });
    expect(read(text).tools).toEqual(['bash']);
  });

  it('extracts all values that the conditions of rules use', () => {
    const messages = [
      message('system', 'Be brief.'),
      message('user', 'First\nwish'),
      message('assistant', 'ok'),
      message('tool', 'one'),
      message('tool', 'two\n'),
      message('assistant', 'ok'),
      message('user', 'Second'),
    ];
    const tools = [
      { type: 'function', function: { name: 'bash' } },
      { type: 'function', function: { name: 'a"b' } },
    ];
    const text = renderChat(messages, { mode: 'open_think', tools, addGenerationPrompt: true });
    expect(read(text)).toMatchObject({
      firstUser: 'First\nwish',
      lastUser: 'Second',
      lastRole: 'user',
      lastToolResult: 'two\n',
      assistantTurns: 2,
      openTurn: vocabulary.encode('<think>\n'),
    });
    expect(read(text).system).toContain('Be brief.');
    expect(read(text).tools[0]).toBe('bash');
    expect(read(text.split('<|im_start|>user\nSecond')[0] ?? '').lastRole).toBe('assistant');
  });

  it('treats ids without turns as one user message', () => {
    expect(read('Once upon a time')).toMatchObject({ firstUser: 'Once upon a time', lastRole: 'user', openTurn: [] });
  });

  it('counts a turn that was cut and not closed as an earlier turn', () => {
    const text = '<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\ncut<|im_start|>user\nb<|im_end|>\n';
    expect(read(text)).toMatchObject({ assistantTurns: 1, lastUser: 'b', openTurn: [] });
  });

  it('splits a token that contains more than the newline of the header', () => {
    expect(vocabulary.encode('assistant\n\nx').length).toBe(vocabulary.encode('assistant\nx').length);
    expect(read('<|im_start|>assistant\n\nx').openTurn).toEqual(vocabulary.encode('\nx'));
  });

  it('parses delimiters in any order without an error', () => {
    const part = fc.constantFrom(
      '<|im_start|>',
      '<|im_end|>',
      'assistant\n',
      'assistant\n\n\nx',
      'user\n',
      '<tool_response>',
      '</tool_response>',
      '\n',
      'text',
    );
    fc.assert(
      fc.property(fc.array(part, { maxLength: 12 }), (parts) => {
        const conversation = read(parts.join(''));
        expect(conversation.assistantTurns).toBeLessThanOrEqual(parts.filter((text) => text === '<|im_start|>').length);
        expect(vocabulary.decode(conversation.openTurn)).not.toContain('<|im_end|>');
      }),
      { numRuns: 500 },
    );
  });

  it('parses a long turn without a header in linear time', () => {
    const ids = [vocabulary.special.imStart, ...new Array(200_000).fill(vocabulary.encode('word')[0])];
    expect(parseConversation(vocabulary, ids).lastRole).toBe('user');
  });
});
