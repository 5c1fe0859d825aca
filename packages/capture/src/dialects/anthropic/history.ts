import { parseAs } from '@floe-rl/core';
import type { AssistantMessage, ContentPart, ToolCall } from '@floe-rl/core/schema';
import { z } from 'zod';
import { type Conversation, contentOf } from '../conversation.ts';
import { completionIdOf } from '../opaque-fields.ts';
import {
  assistantBlocksSchema,
  REQUEST_NAME,
  resultBlocksSchema,
  systemBlocksSchema,
  userBlocksSchema,
  type WireAssistantBlock,
  type WirePart,
  type WireRequest,
} from './schema.ts';

/**
 * Start of Claude Code's first system block, which contains the client version, the entry point and a hash or nonce. The block changes
 * within a session, so successive prompts would have no common prefix. It is removed, because the model does not need it. A block with
 * further lines is a prompt and is kept.
 */
const BILLING_PREFIX = 'x-anthropic-billing-header:';

/** Adds system text to the conversation. `at` is the path of the text in the request and is used in error messages. */
export function addSystem(conversation: Conversation, system: unknown, at: string): void {
  const texts =
    typeof system === 'string'
      ? [system]
      : parseAs(systemBlocksSchema, system, REQUEST_NAME, at).map(({ text }) => text);
  const kept = texts.filter((text) => !isBillingBlock(text));
  if (kept.length < texts.length) conversation.note('billing header block removed');
  const content = contentOf(kept.map((text) => ({ type: 'text', text })));
  if (typeof content === 'string' && content !== '') conversation.system(content);
}

/**
 * Whether a system block contains only the billing header. No regular expression is used, because it would take quadratic time on a long
 * run of white space at the end of the line.
 */
function isBillingBlock(text: string): boolean {
  return text.startsWith(BILLING_PREFIX) && !text.trimEnd().includes('\n');
}

export function addMessage(
  conversation: Conversation,
  { role, content }: WireRequest['messages'][number],
  at: string,
): void {
  switch (role) {
    case 'system':
      addSystem(conversation, content, `${at}.content`);
      return;
    case 'user':
      addUser(conversation, content, `${at}.content`);
      return;
    case 'assistant':
      addAssistant(conversation, content, `${at}.content`);
      return;
  }
}

/**
 * Adds a user message. The tool results in it are added first, because they answer the assistant message; the other blocks follow as one
 * user message.
 */
function addUser(conversation: Conversation, content: unknown, at: string): void {
  if (typeof content === 'string') {
    conversation.user(content);
    return;
  }
  const rest: ContentPart[] = [];
  let results = 0;
  for (const [index, block] of parseAs(userBlocksSchema, content, REQUEST_NAME, at).entries()) {
    if (block.type !== 'tool_result') {
      const part = partOf(conversation, block);
      if (part !== null) rest.push(part);
      continue;
    }
    if (rest.length > 0) conversation.note('text before a tool result moved after it');
    if (block.is_error === true) conversation.note('is_error of a tool result dropped');
    conversation.tool(block.tool_use_id, resultParts(conversation, block.content, `${at}.${index}.content`));
    results++;
  }
  if (rest.length > 0 || results === 0) conversation.user(contentOf(rest));
}

function resultParts(conversation: Conversation, content: unknown, at: string): ContentPart[] {
  if (content === null || content === undefined) return [];
  if (typeof content === 'string') return [{ type: 'text', text: content }];
  return parseAs(resultBlocksSchema, content, REQUEST_NAME, at).flatMap((block) => partOf(conversation, block) ?? []);
}

function partOf(conversation: Conversation, block: WirePart): ContentPart | null {
  switch (block.type) {
    case 'text':
      if (block.citations?.length) conversation.note('citations dropped');
      return { type: 'text', text: block.text };
    case 'image': {
      const { source } = block;
      if (source.type === 'file') {
        conversation.note('image file reference dropped');
        return null;
      }
      const url = source.type === 'url' ? source.url : `data:${source.media_type};base64,${source.data}`;
      return { type: 'image_url', image_url: { url } };
    }
    case 'tool_reference':
      return { type: 'text', text: block.tool_name };
    case 'search_result':
      conversation.note('search result sent as text');
      return { type: 'text', text: [block.title, block.source, ...block.content.map(({ text }) => text)].join('\n') };
    case 'document':
      if (block.source.type === 'text') return { type: 'text', text: block.source.data };
      conversation.note('document block dropped');
      return null;
    default:
      conversation.note(`${block.type} block dropped`);
      return null;
  }
}

/** Order in which an assistant message of the internal form contains the kinds of blocks: thinking, then text, then tool calls. */
const BLOCK_ORDER = { thinking: 0, text: 1, tool_use: 2 } as const;

function addAssistant(conversation: Conversation, content: unknown, at: string): void {
  if (typeof content === 'string') {
    conversation.assistant({ role: 'assistant', content });
    return;
  }
  let completionId: string | null = null;
  let text = '';
  let reasoning = '';
  const calls: ToolCall[] = [];
  let lastPosition = 0;
  for (const block of parseAs(assistantBlocksSchema, content, REQUEST_NAME, at)) {
    switch (block.type) {
      case 'text':
        text += block.text;
        if (block.citations?.length) conversation.note('citations dropped');
        break;
      case 'thinking':
        reasoning += block.thinking;
        completionId = completionIdOf(block.signature) ?? completionId;
        break;
      case 'tool_use':
        calls.push({ id: block.id, type: 'function', function: { name: block.name, arguments: argumentsOf(block) } });
        break;
      default:
        conversation.note(`${block.type} block dropped`);
        continue;
    }
    const position = BLOCK_ORDER[block.type];
    if (position < lastPosition) conversation.note('blocks of an assistant message reordered: thinking, text, calls');
    lastPosition = Math.max(lastPosition, position);
  }
  const message: AssistantMessage = {
    role: 'assistant',
    content: text === '' && calls.length > 0 ? null : text,
    ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
    ...(calls.length === 0 ? {} : { tool_calls: calls }),
  };
  conversation.assistant(message, completionId);
}

const unparsedInputSchema = z.strictObject({ __unparsedToolInput: z.looseObject({ raw: z.string() }) });

/**
 * Returns the argument text of a tool call. Arguments that Claude Code could not parse are returned as sampled; all others are the JSON
 * text of `input`.
 */
function argumentsOf({ input }: Extract<WireAssistantBlock, { type: 'tool_use' }>): string {
  if (input === undefined) return '{}';
  const unparsed = unparsedInputSchema.safeParse(input);
  return unparsed.success ? unparsed.data.__unparsedToolInput.raw : JSON.stringify(input);
}
