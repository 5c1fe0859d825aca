import { FloeError } from '@floe-rl/core';

/**
 * How the simulated model's chat template treats thinking in earlier turns:
 * - `append_only`: every turn is rendered with its thinking, so that each prompt extends the one before.
 * - `strip_thinking`: as Qwen3. Thinking before the last user message that is not a tool result is dropped. After it, thinking is kept, and
 *   the last message of a history always has a thinking block.
 * - `open_think`: as Qwen3.5. Like `strip_thinking`, but every turn after the last user message has a thinking block, and the prompt ends
 *   with the opening of a thinking block.
 */
export const TEMPLATE_MODES = ['append_only', 'strip_thinking', 'open_think'] as const;
export type TemplateMode = (typeof TEMPLATE_MODES)[number];

/** One message as the template renders it. `reasoning` is `null` when the client sent none. */
export type TemplateMessage = {
  readonly role: 'system' | 'user' | 'assistant' | 'tool';
  readonly text: string;
  readonly reasoning: string | null;
  readonly toolCalls: readonly { readonly name: string; readonly argumentsText: string }[];
};

export type RenderOptions = {
  readonly mode: TemplateMode;
  /** Tool definitions as JSON objects. With an empty list, the prompt has no section about tools. */
  readonly tools: readonly unknown[];
  readonly addGenerationPrompt: boolean;
  /** Whether the last turn is rendered without its end, so that the reply continues this turn. */
  readonly continueFinalMessage?: boolean;
};

/** The text at the start of a thinking block. */
export const THINK_PREFIX = '<think>\n';

/** The text at the start of each turn of the model in a prompt. */
export const TURN_START = '<|im_start|>assistant\n';

/** Returns the text that opens the model's turn at the end of a prompt. */
export function generationPrompt(mode: TemplateMode): string {
  return `${TURN_START}${mode === 'open_think' ? THINK_PREFIX : ''}`;
}

/** Renders a conversation as the model's prompt text. Throws `engine_rejected` when a system message is not the first message. */
export function renderChat(messages: readonly TemplateMessage[], options: RenderOptions): string {
  const parts: string[] = [];
  const first = messages[0];
  const system = first?.role === 'system' ? first.text : null;
  if (system !== null || options.tools.length > 0) parts.push(systemTurn(system, options.tools));
  const lastQuery = lastQueryIndex(messages);
  messages.forEach((message, index) => {
    if (message.role === 'system') {
      if (index > 0) throw new FloeError('engine_rejected', 'System message must be at the beginning.');
    } else if (message.role === 'user') {
      parts.push(`<|im_start|>user\n${message.text}<|im_end|>\n`);
    } else if (message.role === 'tool') {
      parts.push(toolResult(message, messages[index - 1]?.role === 'tool', messages[index + 1]?.role === 'tool'));
    } else {
      parts.push(assistantTurn(message, options.mode, index > lastQuery, index === messages.length - 1));
    }
  });
  const text = parts.join('');
  if (options.continueFinalMessage === true) return text.replace(/<\|im_end\|>\n$/, '');
  return options.addGenerationPrompt ? text + generationPrompt(options.mode) : text;
}

function systemTurn(text: string | null, tools: readonly unknown[]): string {
  const sections = text === null || text === '' ? [] : [text];
  if (tools.length > 0) {
    sections.push(
      [
        '# Tools',
        '',
        'These functions can be called, one JSON object per line:',
        '<tools>',
        ...tools.map((tool) => JSON.stringify(tool)),
        '</tools>',
        '',
        'To call one, write its name and its arguments like this:',
        '<tool_call>',
        '{"name": "function", "arguments": {"key": "value"}}',
        '</tool_call>',
      ].join('\n'),
    );
  }
  return `<|im_start|>system\n${sections.join('\n\n')}<|im_end|>\n`;
}

/**
 * Renders a tool result. Consecutive tool results share one user turn. `continues` is set when another tool result precedes this one, and
 * `continued` when another follows.
 */
function toolResult(message: TemplateMessage, continues: boolean, continued: boolean): string {
  const open = continues ? '\n' : '<|im_start|>user\n';
  return `${open}<tool_response>\n${message.text}\n</tool_response>${continued ? '' : '<|im_end|>\n'}`;
}

/** Returns the index of the last user message that is not a tool result in `<tool_response>` tags; -1 when there is no such message. */
function lastQueryIndex(messages: readonly TemplateMessage[]): number {
  return messages.findLastIndex(
    ({ role, text }) => role === 'user' && !(text.startsWith('<tool_response>') && text.endsWith('</tool_response>')),
  );
}

function assistantTurn(message: TemplateMessage, mode: TemplateMode, afterQuery: boolean, isLast: boolean): string {
  const { reasoning, text } = splitInlineThinking(message);
  let body = text;
  if (mode === 'append_only') {
    if (reasoning !== null) body = thinkBlock(reasoning) + text.replace(/^\n+/, '');
  } else if (afterQuery && (mode === 'open_think' || isLast || (reasoning ?? '') !== '')) {
    body = thinkBlock(reasoning ?? '') + text.replace(/^\n+/, '');
  }
  if (message.toolCalls.length > 0) {
    // Exactly one newline separates the content from the first tool call, no matter how many newlines the content ends with.
    const before = text.trim() === '' ? '' : '\n';
    const calls = message.toolCalls.map((call) => toolCallText(call.name, call.argumentsText));
    body = (before === '' ? body : body.replace(/\n+$/, '')) + before + calls.join('\n');
  }
  return `${TURN_START}${body}<|im_end|>\n`;
}

/**
 * Returns the thinking block at the beginning of a turn. The template and the scripted policy both use this text, so that a reply and its
 * later rendering have the same tokens.
 */
export function thinkBlock(reasoning: string): string {
  return `${THINK_PREFIX}${reasoning.replace(/^\n+|\n+$/g, '')}\n</think>\n\n`;
}

/** Returns the text of a tool call. The template renders this text, and the model samples the same text. */
export function toolCallText(name: string, argumentsText: string): string {
  return `<tool_call>\n{"name": ${JSON.stringify(name)}, "arguments": ${argumentsText}}\n</tool_call>`;
}

/** Treats a thinking block that a harness left inside the content as reasoning, as Qwen's templates do. */
function splitInlineThinking(message: TemplateMessage): { reasoning: string | null; text: string } {
  if (message.reasoning !== null) return { reasoning: message.reasoning, text: message.text };
  const end = message.text.indexOf('</think>');
  if (end < 0) return { reasoning: null, text: message.text };
  const start = message.text.indexOf('<think>');
  const reasoning = message.text.slice(start >= 0 && start < end ? start + '<think>'.length : 0, end);
  return { reasoning, text: message.text.slice(end + '</think>'.length) };
}
