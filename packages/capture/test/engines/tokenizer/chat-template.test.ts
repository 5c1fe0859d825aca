import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { renderChat, templateMessages } from '@floe-rl/sim';
import { describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../../../../tools/repository.ts';
import { ChatTemplate } from '../../../src/engines/tokenizer/chat-template.ts';

const user = { role: 'user', content: 'Hi é😀 <|im_end|>' };
const call = (args: string) => ({ id: 'call_1', type: 'function', function: { name: 'look', arguments: args } });
const tools = [
  {
    type: 'function',
    function: { name: 'look', description: "It's <b>&amp;", parameters: { type: 'object', properties: {} } },
  },
];

function render(
  template: string,
  messages: readonly object[],
  over: { tools?: object[]; open?: boolean } = {},
): string {
  const messageTexts = messages.map((message) => JSON.stringify(message));
  const toolsText = JSON.stringify(over.tools ?? []);
  return new ChatTemplate(template, null, { bos_token: '<s>' }).render({
    messageTexts,
    toolsText,
    generationPrompt: over.open ?? true,
  });
}

describe('a template in Jinja', () => {
  const source = readFileSync(
    join(repositoryRoot(), 'packages', 'capture', 'test', 'engines', 'tokenizer', 'sim-template.jinja'),
    'utf8',
  );
  const conversations: [string, object[]][] = [
    ['a question', [user]],
    ['a system message', [{ role: 'system', content: 'Be brief.\n' }, user]],
    ['thinking', [user, { role: 'assistant', content: 'Yes.', reasoning_content: '\nHm.\n' }, user]],
    [
      'calls and their results',
      [
        user,
        { role: 'assistant', content: 'So:', tool_calls: [call('{"a": [1, null, "é"]}'), call('{}')] },
        { role: 'tool', tool_call_id: 'call_1', content: 'one' },
        { role: 'tool', tool_call_id: 'call_1', content: 'two' },
        user,
      ],
    ],
  ];

  it.each(conversations)('renders %s as the simulated engine does', (_, messages) => {
    for (const given of [[], tools]) {
      for (const open of [true, false]) {
        const expected = renderChat(templateMessages(messages as never, { vision: false, anyArguments: true }), {
          mode: 'append_only',
          tools: given,
          addGenerationPrompt: open,
        });
        expect(render(source, messages, { tools: given, open })).toBe(expected);
      }
    }
  });

  it('is rejected with its own message when it refuses the messages', () => {
    const refuse = "{{ raise_exception('Roles must alternate') }}";
    expect(() => render(refuse, [user])).toThrow(
      expect.objectContaining({ code: 'engine_rejected', message: expect.stringContaining('Roles must alternate') }),
    );
  });
});

describe('the messages of a template', () => {
  it('have one text as content, also where the content was a list or null', () => {
    const show = '{% for m in messages %}[{{ m.content }}]{% endfor %}';
    const parts = [
      { type: 'text', text: 'a' },
      { type: 'text', text: 'b' },
    ];
    const turn = { role: 'assistant', content: null, tool_calls: [call('{}')] };
    expect(render(show, [{ role: 'user', content: parts }, turn])).toBe('[a\nb][]');
  });

  it('have arguments as objects, and as text where they are no valid object', () => {
    const show = '{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }};{% endfor %}';
    const calls = [call('{"b":1,"a":"é"}'), call('{"b":'), call('7')];
    expect(render(show, [{ role: 'assistant', content: null, tool_calls: calls }])).toBe(
      '{"b": 1, "a": "é"};"{\\"b\\":";"7";',
    );
  });

  it('come with the special tokens of the model, and with no tools where there are none', () => {
    expect(render('{{ bos_token }}{% if tools %}T{% else %}-{% endif %}', [user])).toBe('<s>-');
    expect(render('{{ tools | length }}', [user], { tools })).toBe('1');
  });

  it('with tools are rendered by the template for tools, where there is one', () => {
    const template = new ChatTemplate('plain', 'tools', {});
    const conversation = { messageTexts: [JSON.stringify(user)], generationPrompt: true };
    expect(template.render({ ...conversation, toolsText: '[]' })).toBe('plain');
    expect(template.render({ ...conversation, toolsText: JSON.stringify(tools) })).toBe('tools');
  });
});
