import type { AssistantMessage, ToolCall, ToolChoice } from '@floe-rl/core/schema';
import { customInput, isCustomTool } from '../custom-tool.ts';
import type { CanonicalReply, CanonicalRequest, ReplyHead } from '../dialect.ts';
import { sealText } from '../opaque-fields.ts';
import { itemId, responseId } from './identifiers.ts';

export function encodeResponse(reply: CanonicalReply, request: CanonicalRequest): string {
  return JSON.stringify(finishedResponse(reply, request));
}

/** Makes the response object at the start of a reply. It omits the request's tools and instructions, which would be most of its size. */
export function openResponse(head: ReplyHead, request: CanonicalRequest): object {
  return {
    id: responseId(head.completionId),
    object: 'response',
    created_at: Math.floor(head.createdMs / 1000),
    status: 'in_progress',
    error: null,
    incomplete_details: null,
    instructions: null,
    max_output_tokens: request.samplingAsked.max_tokens ?? null,
    metadata: {},
    model: head.model,
    output: [],
    parallel_tool_calls: request.parallelToolCalls ?? true,
    previous_response_id: request.replyShape?.previousResponse ?? null,
    temperature: null,
    tool_choice: wireToolChoice(request.toolChoice, request),
    tools: [],
    top_p: null,
    truncation: 'disabled',
    usage: null,
  };
}

/** Makes the response object of a complete reply. */
export function finishedResponse(reply: CanonicalReply, request: CanonicalRequest): object {
  const truncated = isTruncated(reply);
  return {
    ...openResponse(reply, request),
    status: truncated ? 'incomplete' : 'completed',
    incomplete_details: truncated ? { reason: 'max_output_tokens' } : null,
    output: itemsOf(reply, request),
    usage: usageOf(reply),
  };
}

/** Makes the response object of a reply that failed. */
export function failedResponse(
  head: ReplyHead,
  request: CanonicalRequest,
  error: { readonly code: string; readonly message: string },
): object {
  return { ...openResponse(head, request), status: 'failed', error };
}

function wireToolChoice(choice: ToolChoice | null, request: CanonicalRequest): unknown {
  if (choice === null || typeof choice === 'string') return choice ?? 'auto';
  const { name } = choice.function;
  const type = isCustomTool(name, request) ? 'custom' : 'function';
  return { type, name: request.toolForms.get(name)?.name ?? name };
}

/** Makes the token usage of a response. `reasoning_tokens` is 0, because engines do not report how many tokens were thinking. */
function usageOf(reply: CanonicalReply): object {
  const { prompt_tokens, completion_tokens, cached_tokens } = reply.usage;
  return {
    input_tokens: prompt_tokens,
    input_tokens_details: { cached_tokens: cached_tokens ?? 0 },
    output_tokens: completion_tokens,
    output_tokens_details: { reasoning_tokens: 0 },
    total_tokens: prompt_tokens + completion_tokens,
  };
}

/** Status of an item. Only the last item of a reply can be `incomplete`, when the reply was truncated. */
export type ItemStatus = 'in_progress' | 'completed' | 'incomplete';

/**
 * Makes a reasoning item; `text` is `null` in the event that opens the item in a stream. Thinking is sent only as a summary, because some
 * clients return raw reasoning text a second time, as an assistant message.
 */
export function reasoningItem(completionId: string, text: string | null, request: CanonicalRequest): object {
  return {
    id: itemId('rs', completionId),
    type: 'reasoning',
    summary: text === null ? [] : [{ type: 'summary_text', text }],
    ...(text !== null && request.replyShape?.sealedThinking
      ? { encrypted_content: sealText('thinking', completionId, text) }
      : {}),
  };
}

export function textPart(text: string): object {
  return { type: 'output_text', text, annotations: [], logprobs: [] };
}

/** Makes a message item; `text` is `null` in the event that opens the item in a stream. */
export function messageItem(completionId: string, text: string | null, status: ItemStatus): object {
  return {
    id: itemId('msg', completionId),
    type: 'message',
    status,
    role: 'assistant',
    content: text === null ? [] : [textPart(text)],
  };
}

/**
 * The properties of a tool call that are available when it starts. `index` is its position among the calls of the reply, `id` the call id.
 */
export type CallHead = { readonly index: number; readonly id: string; readonly name: string };

/** Makes the id of the item that contains a tool call. */
export function callItemId({ index, name }: CallHead, completionId: string, request: CanonicalRequest): string {
  return itemId(isCustomTool(name, request) ? 'ctc' : 'fc', completionId, index);
}

/** Makes the item of a tool call in the form in which the client declared the tool. `args` is the argument text as sampled. */
export function callItem(
  completionId: string,
  call: CallHead,
  args: string,
  status: ItemStatus,
  request: CanonicalRequest,
): object {
  const form = request.toolForms.get(call.name);
  const id = callItemId(call, completionId, request);
  const inner = {
    call_id: call.id,
    name: form?.name ?? call.name,
    ...(form?.namespace === undefined ? {} : { namespace: form.namespace }),
  };
  if (form?.kind !== 'custom') return { id, type: 'function_call', status, arguments: args, ...inner };
  return { id, type: 'custom_tool_call', status, input: status === 'in_progress' ? '' : customInput(args), ...inner };
}

export function compactionItem(reply: CanonicalReply): object {
  return {
    id: itemId('cmp', reply.completionId),
    type: 'compaction',
    encrypted_content: sealText('summary', reply.completionId, reply.message.content ?? ''),
  };
}

/**
 * Makes the items of a reply in the order thinking, text, tool calls. An empty reply is encoded as a message without text, so that the
 * client returns it as an empty assistant message.
 */
function itemsOf(reply: CanonicalReply, request: CanonicalRequest): object[] {
  if (request.replyShape?.compaction) return [compactionItem(reply)];
  const { completionId, message } = reply;
  const { reasoning_content: thinking = '', content, tool_calls: calls = [] } = message;
  const last = lastStatus(reply);
  const items: object[] = [];
  if (thinking !== '') items.push(reasoningItem(completionId, thinking, request));
  if (hasMessageItem(message)) {
    items.push(messageItem(completionId, content ?? '', calls.length === 0 ? last : 'completed'));
  }
  for (const [index, call] of calls.entries()) {
    const status = index === calls.length - 1 ? last : 'completed';
    items.push(callItem(completionId, callHeadOf(call, index), call.function.arguments, status, request));
  }
  return items;
}

/** Whether a reply is encoded with a message item: it contains text, or it is empty. */
export function hasMessageItem({ content, reasoning_content, tool_calls = [] }: AssistantMessage): boolean {
  return Boolean(content) || (!reasoning_content && tool_calls.length === 0);
}

/** Returns the status of the reply's last item. */
export function lastStatus(reply: CanonicalReply): ItemStatus {
  return isTruncated(reply) ? 'incomplete' : 'completed';
}

/** Whether the reply was truncated by its length limit or by an abort. */
export function isTruncated({ finishReason }: CanonicalReply): boolean {
  return finishReason === 'length' || finishReason === 'abort';
}

function callHeadOf(call: ToolCall, index: number): CallHead {
  return { index, id: call.id, name: call.function.name };
}
