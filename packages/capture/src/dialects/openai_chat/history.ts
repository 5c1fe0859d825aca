import { FloeError, parseAs } from '@floe-rl/core';
import type { AssistantMessage, Content, ContentPart, ToolCall } from '@floe-rl/core/schema';
import { type Conversation, contentOf } from '../conversation.ts';
import { customArguments } from '../custom-tool.ts';
import { partsSchema, REQUEST_NAME, type WireAssistant, type WireMessage, type WireToolCall } from './schema.ts';

/** Adds a message to the conversation. `at` is the path of the message in the request, for error messages. */
export function addMessage(conversation: Conversation, message: WireMessage, at: string): void {
  switch (message.role) {
    case 'system':
    case 'developer':
      if (message.role === 'developer') conversation.note('developer message sent as system');
      conversation.system(textWithoutImages(conversation, partsOf(conversation, message.content, at)));
      return;
    case 'user':
      conversation.user(contentOf(partsOf(conversation, message.content, at)));
      return;
    case 'assistant':
      conversation.assistant(assistantOf(conversation, message, at));
      return;
    case 'tool':
      conversation.tool(message.tool_call_id, partsOf(conversation, message.content, at));
      return;
    case 'function':
      throw new FloeError('unsupported', `${at}.role: results of legacy functions; send tool messages instead`);
  }
}

function assistantOf(conversation: Conversation, message: WireAssistant, at: string): AssistantMessage {
  if (message.function_call != null) {
    throw new FloeError('unsupported', `${at}.function_call: a legacy call; send tool_calls instead`);
  }
  // The text of a refusal is in a separate field. It becomes the content when the message has no other text.
  const content =
    textWithoutImages(conversation, partsOf(conversation, message.content, at)) || (message.refusal ?? '');
  const reasoning = message.reasoning_content ?? message.reasoning ?? '';
  const calls = (message.tool_calls ?? []).map((call, index) => callOf(call, `${at}.tool_calls.${index}`));
  return {
    role: 'assistant',
    content: content === '' && calls.length > 0 ? null : content,
    ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
    ...(calls.length === 0 ? {} : { tool_calls: calls }),
  };
}

function callOf({ id, type, function: called, custom }: WireToolCall, at: string): ToolCall {
  if (type === 'custom') {
    if (!custom) throw new FloeError('schema_violation', `${REQUEST_NAME}: ${at}.custom: expected an object`);
    return { id, type: 'function', function: { name: custom.name, arguments: customArguments(custom.input) } };
  }
  if (!called) throw new FloeError('schema_violation', `${REQUEST_NAME}: ${at}.function: expected an object`);
  return { id, type: 'function', function: { name: called.name, arguments: called.arguments } };
}

function partsOf(conversation: Conversation, content: unknown, at: string): ContentPart[] {
  if (content === null || content === undefined) return [];
  if (typeof content === 'string') return [{ type: 'text', text: content }];
  const parts: ContentPart[] = [];
  for (const part of parseAs(partsSchema, content, REQUEST_NAME, `${at}.content`)) {
    switch (part.type) {
      case 'text':
        parts.push({ type: 'text', text: part.text });
        break;
      case 'refusal':
        parts.push({ type: 'text', text: part.refusal });
        break;
      case 'image_url':
        parts.push({ type: 'image_url', image_url: { url: part.image_url.url } });
        break;
      default:
        conversation.note(`${part.type} part dropped`);
    }
  }
  return parts;
}

function textWithoutImages(conversation: Conversation, parts: readonly ContentPart[]): string {
  const texts = parts.filter((part) => part.type === 'text');
  if (texts.length < parts.length) conversation.note('image outside a user message dropped');
  const content: Content = contentOf(texts);
  return typeof content === 'string' ? content : '';
}
