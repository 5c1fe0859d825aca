import { type FloeError, fieldError } from '@floe-rl/core';
import type { CanonicalRequest } from '../../dialects/dialect.ts';
import type { Completion } from '../../tokens/completion.ts';
import { shortened } from './request-limits.ts';

/**
 * Replaces a request's reference to a previous response by the conversation of that response: its messages and its reply, followed by the
 * new messages. A system message at the start of the new messages replaces the earlier system message. The tools are taken from the
 * previous request when `inheritsTools` is set; everything else is taken from the new request. A request without a reference is returned
 * unchanged. `sentReply` returns the completion that has a given id, or `null` when the session has sent no reply with this id;
 * `schema_violation` is then thrown.
 */
export function withPreviousResponse(
  request: CanonicalRequest,
  sentReply: (completionId: string) => Completion | null,
): CanonicalRequest {
  const { previousCompletionId, messages } = request;
  if (previousCompletionId === null) return request;
  const earlier = sentReply(previousCompletionId);
  if (earlier === null) throw unknownResponse(previousCompletionId);
  const history = earlier.request.messages;
  const replacesSystem = messages[0]?.role === 'system' && history[0]?.role === 'system';
  const kept = replacesSystem ? history.slice(1) : history;
  const [head, rest] = messages[0]?.role === 'system' ? [messages.slice(0, 1), messages.slice(1)] : [[], messages];
  const tools = request.inheritsTools === true ? earlier.request.tools : request.tools;
  const claimedCompletions = new Map([
    ...(request.claimedCompletions ?? []),
    [earlier.message, earlier.completionId] as const,
  ]);
  return {
    ...request,
    tools,
    messages: [...head, ...kept, earlier.message, ...rest],
    claimedCompletions,
    previousCompletionId: null,
  };
}

function unknownResponse(completionId: string): FloeError {
  const message = `no response ${shortened(completionId)} in this session`;
  return fieldError('previous_response_id', message, { details: { unknown_response: shortened(completionId) } });
}
