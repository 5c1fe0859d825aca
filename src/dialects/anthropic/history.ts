import { z } from 'zod';
import { parseAs } from '../../core/parse.ts';
import type { AssistantMessage, ContentPart, ToolCall } from '../../schema/index.ts';
import { type Conversation, contentOf } from '../conversation.ts';
import { completionNamed } from '../opaque-fields.ts';
import {
  assistantBlocksSchema,
  type ForeignAssistantBlock,
  type ForeignPart,
  type ForeignRequest,
  resultBlocksSchema,
  systemBlocksSchema,
  userBlocksSchema,
} from './schema.ts';

/**
 * Claude Code's first system block: client version, entry point and a hash or nonce. It changes within a session, which
 * breaks every prefix, and tells the model nothing. Only a block that is nothing else: a text that goes on is a prompt.
 */
const BILLING_PREFIX = 'x-anthropic-billing-header:';

const WHAT = 'messages request';

/** `at`: where the text is in the request, for errors. */
export function addSystem(conversation: Conversation, system: unknown, at: string): void {
  const texts =
    typeof system === 'string' ? [system] : parseAs(systemBlocksSchema, system, WHAT, at).map(({ text }) => text);
  const kept = texts.filter((text) => !isBillingBlock(text));
  if (kept.length < texts.length) conversation.note('billing header block removed');
  const content = contentOf(kept.map((text) => ({ type: 'text', text })));
  if (typeof content === 'string' && content !== '') conversation.system(content);
}

/** By hand: an expression for it takes time in the square of the white space at the end of a line. */
function isBillingBlock(text: string): boolean {
  return text.startsWith(BILLING_PREFIX) && !text.trimEnd().includes('\n');
}

export function addMessage(
  conversation: Conversation,
  { role, content }: ForeignRequest['messages'][number],
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

/** Tool results answer the assistant turn, so they come first; what else the turn holds follows as one user message. */
function addUser(conversation: Conversation, content: unknown, at: string): void {
  if (typeof content === 'string') {
    conversation.user(content);
    return;
  }
  const rest: ContentPart[] = [];
  let results = 0;
  for (const [index, block] of parseAs(userBlocksSchema, content, WHAT, at).entries()) {
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
  return parseAs(resultBlocksSchema, content, WHAT, at).flatMap((block) => partOf(conversation, block) ?? []);
}

function partOf(conversation: Conversation, block: ForeignPart): ContentPart | null {
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

/** Where blocks have their place in the canonical turn, which has one thinking, one text and then the calls. */
const RANK = { thinking: 0, text: 1, tool_use: 2 } as const;

function addAssistant(conversation: Conversation, content: unknown, at: string): void {
  if (typeof content === 'string') {
    conversation.assistant({ role: 'assistant', content });
    return;
  }
  let completionId: string | null = null;
  let text = '';
  let reasoning = '';
  const calls: ToolCall[] = [];
  let reached = 0;
  for (const block of parseAs(assistantBlocksSchema, content, WHAT, at)) {
    switch (block.type) {
      case 'text':
        text += block.text;
        if (block.citations?.length) conversation.note('citations dropped');
        break;
      case 'thinking':
        reasoning += block.thinking;
        completionId = completionNamed(block.signature) ?? completionId;
        break;
      case 'tool_use':
        calls.push({ id: block.id, type: 'function', function: { name: block.name, arguments: argumentsOf(block) } });
        break;
      default:
        conversation.note(`${block.type} block dropped`);
        continue;
    }
    const rank = RANK[block.type];
    if (rank < reached) conversation.note('blocks of an assistant turn reordered: thinking, text, calls');
    reached = Math.max(reached, rank);
  }
  const message: AssistantMessage = {
    role: 'assistant',
    content: text === '' && calls.length > 0 ? null : text,
    ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
    ...(calls.length === 0 ? {} : { tool_calls: calls }),
  };
  conversation.assistant(message, completionId);
}

const unparsedSchema = z.strictObject({ __unparsedToolInput: z.looseObject({ raw: z.string() }) });

/** As the policy wrote them where Claude Code could not parse them and says so; else their JSON text. */
function argumentsOf({ input }: Extract<ForeignAssistantBlock, { type: 'tool_use' }>): string {
  if (input === undefined) return '{}';
  const unparsed = unparsedSchema.safeParse(input);
  return unparsed.success ? unparsed.data.__unparsedToolInput.raw : JSON.stringify(input);
}
