import { z } from 'zod';
import { parseAs } from '../../core/parse.ts';
import type {
  AssistantMessage,
  ChatTool,
  ContentPart,
  SamplingAsked,
  ToolCall,
  ToolChoice,
} from '../../schema/index.ts';
import { labelCall } from '../call-kind.ts';
import { Conversation, contentOf } from '../conversation.ts';
import type { CallContext, CanonicalRequest } from '../dialect.ts';
import {
  assistantBlockSchema,
  type ForeignRequest,
  type ForeignResultBlock,
  requestSchema,
  userBlockSchema,
} from './schema.ts';

/**
 * Claude Code's first system block: client version, entry point and a hash or nonce. It changes within a session, which
 * breaks every prefix, and tells the model nothing.
 */
const BILLING_BLOCK = /^x-anthropic-billing-header:/;

/** Fields that would change what is sampled or shown to the model, and have no effect behind floe. */
const IGNORED_FIELDS = ['thinking', 'context_management', 'mcp_servers'] as const;

export function parseMessagesRequest(body: unknown, { headers }: CallContext): CanonicalRequest {
  const request = parseAs(requestSchema, body, 'messages request');
  const conversation = new Conversation();
  addSystem(conversation, request.system);
  for (const [index, message] of request.messages.entries()) addMessage(conversation, message, index);
  for (const field of IGNORED_FIELDS) {
    if (request[field] !== undefined && request[field] !== null) conversation.note(`${field} ignored`);
  }
  if (request.output_config?.effort != null) conversation.note('output_config.effort ignored');
  const tools = toolsOf(request, conversation);
  const samplingAsked = samplingOf(request);
  const { messages, adjusted } = conversation.finish();
  return {
    model: request.model,
    messages,
    tools,
    toolForms: new Map(),
    toolChoice: toolChoiceOf(request.tool_choice),
    parallelToolCalls: parallelOf(request.tool_choice),
    samplingAsked,
    stream: request.stream ?? false,
    streamUsage: true,
    continues: null,
    adjusted,
    ...labelCall({ headers, messages, tools, responseFormat: samplingAsked.response_format }),
  };
}

type ForeignContent = ForeignRequest['messages'][number]['content'];

function addSystem(conversation: Conversation, system: ForeignRequest['system']): void {
  if (system === null || system === undefined) return;
  const texts = typeof system === 'string' ? [system] : system.map((block) => block.text);
  const kept = texts.filter((text) => !BILLING_BLOCK.test(text));
  if (kept.length < texts.length) conversation.note('billing header block removed');
  const content = contentOf(kept.map((text) => ({ type: 'text', text })));
  if (typeof content === 'string' && content !== '') conversation.system(content);
}

function addMessage(conversation: Conversation, message: ForeignRequest['messages'][number], index: number): void {
  switch (message.role) {
    case 'system':
      addSystem(conversation, systemTexts(message.content, index));
      return;
    case 'user':
      addUser(conversation, message.content, index);
      return;
    case 'assistant':
      conversation.assistant(assistantOf(conversation, message.content, index));
      return;
  }
}

function systemTexts(content: ForeignContent, index: number): ForeignRequest['system'] {
  if (typeof content === 'string') return content;
  return parseAs(requestSchema.shape.system, content, `messages.${index}.content`);
}

/** Tool results answer the assistant turn, so they come first; what else the turn holds follows as one user message. */
function addUser(conversation: Conversation, content: ForeignContent, index: number): void {
  if (typeof content === 'string') {
    conversation.user(content);
    return;
  }
  const blocks = parseAs(z.array(userBlockSchema), content, `messages.${index}.content`);
  const rest: ContentPart[] = [];
  let results = 0;
  for (const block of blocks) {
    if (block.type !== 'tool_result') {
      const part = partOf(conversation, block);
      if (part !== null) rest.push(part);
      continue;
    }
    if (rest.length > 0) conversation.note('text before a tool result moved after it');
    if (block.is_error === true) conversation.note('is_error of a tool result dropped');
    conversation.tool(block.tool_use_id, resultParts(conversation, block.content));
    results++;
  }
  if (rest.length > 0 || results === 0) conversation.user(contentOf(rest));
}

function resultParts(
  conversation: Conversation,
  content: string | ForeignResultBlock[] | null | undefined,
): ContentPart[] {
  if (content === null || content === undefined) return [];
  if (typeof content === 'string') return [{ type: 'text', text: content }];
  return content.flatMap((block) => partOf(conversation, block) ?? []);
}

function partOf(conversation: Conversation, block: ForeignResultBlock): ContentPart | null {
  switch (block.type) {
    case 'text':
      return { type: 'text', text: block.text };
    case 'image': {
      const { source } = block;
      const url = source.type === 'url' ? source.url : `data:${source.media_type};base64,${source.data}`;
      return { type: 'image_url', image_url: { url } };
    }
    case 'tool_reference':
      return { type: 'text', text: block.tool_name };
    case 'document': {
      if (block.source.type === 'text') return { type: 'text', text: block.source.data };
      conversation.note('document block dropped');
      return null;
    }
  }
}

function assistantOf(conversation: Conversation, content: ForeignContent, index: number): AssistantMessage {
  if (typeof content === 'string') return { role: 'assistant', content };
  const blocks = parseAs(z.array(assistantBlockSchema), content, `messages.${index}.content`);
  let text = '';
  let reasoning = '';
  const calls: ToolCall[] = [];
  for (const block of blocks) {
    switch (block.type) {
      case 'text':
        text += block.text;
        break;
      case 'thinking':
        reasoning += block.thinking;
        break;
      case 'redacted_thinking':
        conversation.note('redacted thinking dropped');
        break;
      case 'tool_use':
        calls.push({
          id: block.id,
          type: 'function',
          function: { name: block.name, arguments: JSON.stringify(block.input) },
        });
        break;
    }
  }
  return {
    role: 'assistant',
    content: text === '' && calls.length > 0 ? null : text,
    ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
    ...(calls.length === 0 ? {} : { tool_calls: calls }),
  };
}

/** A tool that the client runs has a schema of its own; anything else would have to be run by the vendor. */
function toolsOf(request: ForeignRequest, conversation: Conversation): ChatTool[] {
  const tools: ChatTool[] = [];
  for (const tool of request.tools ?? []) {
    if ((tool.type ?? 'custom') !== 'custom' || tool.input_schema === undefined) {
      conversation.note(`hosted tool ${tool.type ?? tool.name ?? 'without a name'} dropped`);
      continue;
    }
    if (tool.defer_loading === true) conversation.note('defer_loading ignored: the tool is sent in full');
    const description = tool.description ?? '';
    tools.push({
      type: 'function',
      function: {
        name: tool.name ?? '',
        ...(description === '' ? {} : { description }),
        parameters: tool.input_schema,
      },
    });
  }
  return tools;
}

function toolChoiceOf(choice: ForeignRequest['tool_choice']): ToolChoice | null {
  if (choice === null || choice === undefined) return null;
  switch (choice.type) {
    case 'auto':
    case 'none':
      return choice.type;
    case 'any':
      return 'required';
    case 'tool':
      return { type: 'function', function: { name: choice.name } };
  }
}

function parallelOf(choice: ForeignRequest['tool_choice']): boolean | null {
  const disabled = choice?.disable_parallel_tool_use;
  return disabled === undefined || disabled === null ? null : !disabled;
}

function samplingOf(request: ForeignRequest): SamplingAsked {
  const { temperature, top_p, top_k, max_tokens, stop_sequences } = request;
  const schema = request.output_config?.format?.schema ?? request.output_format?.schema;
  return {
    ...(temperature == null ? {} : { temperature }),
    ...(top_p == null ? {} : { top_p }),
    ...(top_k == null ? {} : { top_k }),
    ...(max_tokens == null ? {} : { max_tokens }),
    ...(stop_sequences == null || stop_sequences.length === 0 ? {} : { stop: stop_sequences }),
    // This dialect has no name for a schema, and engines want one.
    ...(schema === undefined
      ? {}
      : { response_format: { type: 'json_schema' as const, json_schema: { name: 'response', schema } } }),
  };
}
