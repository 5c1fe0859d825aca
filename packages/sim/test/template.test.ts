import { describe, expect, it } from 'vitest';
import { renderChat, TEMPLATE_MODES, type TemplateMessage, type TemplateMode } from '../src/template.ts';

const message = (
  role: TemplateMessage['role'],
  text: string,
  more: Partial<TemplateMessage> = {},
): TemplateMessage => ({
  role,
  text,
  reasoning: null,
  toolCalls: [],
  ...more,
});

const render = (mode: TemplateMode, messages: readonly TemplateMessage[]): string =>
  renderChat(messages, { mode, tools: [], addGenerationPrompt: true });

const call = { name: 'bash', argumentsText: '{"command":"ls"}' };
const request = [message('system', 'Be brief.'), message('user', 'Fix it.')];
/** Returns the text that the policy samples after the generation prompt: thinking, then `body`, then the end of the turn. */
const sampled = (mode: TemplateMode, body: string): string =>
  `${mode === 'open_think' ? '' : '<think>\n'}hm\n</think>\n\n${body}<|im_end|>`;
const callBody = 'Looking.\n<tool_call>\n{"name": "bash", "arguments": {"command":"ls"}}\n</tool_call>';
const callTurn = message('assistant', '\n\nLooking.\n', { reasoning: '\nhm\n', toolCalls: [call] });
const answerTurn = message('assistant', '\n\nDone.', { reasoning: 'hm' });

describe('the chat template', () => {
  for (const mode of TEMPLATE_MODES) {
    it(`${mode}: extends the sampled ids with a tool result`, () => {
      const before = render(mode, request) + sampled(mode, callBody);
      const after = render(mode, [...request, callTurn, message('tool', 'a.txt')]);
      expect(after.slice(0, before.length)).toBe(before);
      expect(after.slice(before.length)).toContain(
        '<|im_start|>user\n<tool_response>\na.txt\n</tool_response><|im_end|>',
      );
    });

    it(`${mode}: ${mode === 'append_only' ? 'extends' : 'changes'} the sampled ids with a new user turn`, () => {
      const before = render(mode, request) + sampled(mode, 'Done.');
      const after = render(mode, [...request, answerTurn, message('user', 'And now?')]);
      expect(after.startsWith(before)).toBe(mode === 'append_only');
      expect(after.includes('hm')).toBe(mode === 'append_only');
    });

    it(`${mode}: extends the sampled ids when thinking is left inside the content`, () => {
      const inline = message('assistant', '<think>\nhm\n</think>\n\nLooking.', { toolCalls: [call] });
      const after = render(mode, [...request, inline, message('tool', 'a.txt')]);
      expect(after.startsWith(render(mode, request) + sampled(mode, callBody))).toBe(true);
    });

    it(`${mode}: changes the sampled ids when the reasoning is dropped`, () => {
      const dropped = message('assistant', 'Looking.', { toolCalls: [call] });
      const after = render(mode, [...request, dropped, message('tool', 'a.txt')]);
      expect(after.startsWith(render(mode, request) + sampled(mode, callBody))).toBe(false);
    });
  }

  it('gives the last message of a history a thinking block in strip_thinking, with or without reasoning', () => {
    const history = (messages: readonly TemplateMessage[]): string =>
      renderChat(messages, { mode: 'strip_thinking', tools: [], addGenerationPrompt: false });
    const bare = message('assistant', 'Looking.', { toolCalls: [call] });
    expect(history([...request, bare])).toContain('<think>\n\n</think>\n\nLooking.');
    expect(history([...request, bare, message('tool', 'x')])).not.toContain('<think>');
  });

  it('opens a thinking block only in open_think', () => {
    expect(render('open_think', request).endsWith('<|im_start|>assistant\n<think>\n')).toBe(true);
    expect(render('strip_thinking', request).endsWith('<|im_start|>assistant\n')).toBe(true);
  });

  it('merges consecutive tool results into one user turn', () => {
    const text = render('append_only', [...request, callTurn, message('tool', 'one'), message('tool', 'two')]);
    expect(text).toContain(
      '<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>\n',
    );
  });

  it('renders argument text unchanged', () => {
    const odd = { name: 'f', argumentsText: '{ "b" : 1.0,"a":[ ] }' };
    expect(render('append_only', [...request, message('assistant', '', { toolCalls: [odd] })])).toContain(
      `{"name": "f", "arguments": ${odd.argumentsText}}`,
    );
  });

  it('shows tools in the system turn, with or without a system message', () => {
    const tools = [{ type: 'function', function: { name: 'bash' } }];
    for (const messages of [request, request.slice(1)]) {
      const text = renderChat(messages, { mode: 'append_only', tools, addGenerationPrompt: true });
      expect(text.startsWith('<|im_start|>system\n')).toBe(true);
      expect(text).toContain(`<tools>\n${JSON.stringify(tools[0])}\n</tools>`);
    }
  });

  it('leaves the final message open when it is to be continued', () => {
    const options = { mode: 'append_only', tools: [], addGenerationPrompt: false, continueFinalMessage: true } as const;
    expect(renderChat([...request, message('assistant', 'So far')], options).endsWith('assistant\nSo far')).toBe(true);
  });

  it('refuses a system message that is not the first', () => {
    expect(() => render('append_only', [...request, message('system', 'late')])).toThrow(/must be at the beginning/);
  });

  it.each(TEMPLATE_MODES)('%s: closes every turn of a history, whatever its first and last turns are', (mode) => {
    const turns = [
      message('user', 'Fix it.'),
      callTurn,
      message('tool', 'one'),
      message('tool', 'two'),
      answerTurn,
      message('user', 'And now?'),
      message('assistant', ''),
    ];
    for (const head of [[], [message('system', 'Be brief.')]]) {
      for (let end = 0; end <= turns.length; end++) {
        // Tests every section of the conversation, because a history may begin with any message, even an assistant turn.
        for (let begin = 0; begin < end; begin++) {
          const messages = [...head, ...turns.slice(begin, end)];
          const text = renderChat(messages, { mode, tools: [], addGenerationPrompt: false });
          const results = messages.filter(({ role }, i) => role === 'tool' && messages[i - 1]?.role === 'tool').length;
          const closed = messages.at(-1)?.role === 'tool';
          expect(text.endsWith('<|im_end|>\n')).toBe(true);
          expect(text.split('<|im_end|>').length - 1).toBe(messages.length - results);
          expect(text.split('<|im_start|>').length - 1).toBe(messages.length - results);
          expect(text.startsWith('<|im_start|>system\n')).toBe(head.length > 0);
          if (closed) expect(text).toMatch(/<\/tool_response><\|im_end\|>\n$/);
          const open = renderChat(messages, { mode, tools: [], addGenerationPrompt: true });
          expect(open.startsWith(`${text}<|im_start|>assistant\n`)).toBe(true);
        }
      }
    }
  });
});
