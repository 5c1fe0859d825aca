import type { AssistantMessage, ToolCall } from '../../schema/index.ts';
import { customInput } from '../custom-tool.ts';
import type { CanonicalReply, CanonicalRequest } from '../dialect.ts';
import { itemId } from './identifiers.ts';
import { sealText } from './sealed-text.ts';

/** Only the last item of a reply can be cut, by the bound on its length. */
export type ItemStatus = 'in_progress' | 'completed' | 'incomplete';

/** Thinking goes out as summary only: some clients send back raw reasoning text a second time, as an assistant message. */
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

/** `text` is null before the first part. */
export function messageItem(completionId: string, text: string | null, status: ItemStatus): object {
  return {
    id: itemId('msg', completionId),
    type: 'message',
    status,
    role: 'assistant',
    content: text === null ? [] : [textPart(text)],
  };
}

export type CallHead = { readonly index: number; readonly id: string; readonly name: string };

export function isCustom(name: string, request: CanonicalRequest): boolean {
  return request.toolForms.get(name)?.kind === 'custom';
}

export function callItemId({ index, name }: CallHead, completionId: string, request: CanonicalRequest): string {
  return itemId(isCustom(name, request) ? 'ctc' : 'fc', completionId, index);
}

/** The call as the client declared the tool; `args` is the argument text as sampled. */
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
 * The items of a reply: thinking, text, calls. A reply of nothing has a message without text, so that it comes back as the
 * turn that it was.
 */
export function itemsOf(reply: CanonicalReply, request: CanonicalRequest): object[] {
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
    items.push(callItem(completionId, headOf(call, index), call.function.arguments, status, request));
  }
  return items;
}

/** Whether the reply's text is an item of its own. */
export function hasMessageItem({ content, reasoning_content, tool_calls = [] }: AssistantMessage): boolean {
  return Boolean(content) || (!reasoning_content && tool_calls.length === 0);
}

export function lastStatus(reply: CanonicalReply): ItemStatus {
  return isCut(reply) ? 'incomplete' : 'completed';
}

export function isCut({ finishReason }: CanonicalReply): boolean {
  return finishReason === 'length' || finishReason === 'abort';
}

function headOf(call: ToolCall, index: number): CallHead {
  return { index, id: call.id, name: call.function.name };
}
