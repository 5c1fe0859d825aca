import { FloeError } from '../../core/errors.ts';
import type { CanonicalRequest } from '../../dialects/dialect.ts';
import type { Completion } from '../../tokens/completion.ts';
import { quoted } from './request-limits.ts';

/**
 * Replaces the reference to a previous response by its conversation: the messages and the reply of that completion, followed by the
 * new messages. Leading system text of the new messages replaces that of the earlier ones. Everything else is the new request's,
 * including the tools unless the request inherits them. A request without a reference is returned unchanged. `sentReply` returns the
 * completion with an id whose reply the session has sent. Throws `schema_violation` when there is none.
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
  const path = 'previous_response_id';
  const message = `no response ${quoted(completionId)} in this session`;
  return new FloeError('schema_violation', `${path}: ${message}`, {
    issues: [{ path, message }],
    unknown_response: quoted(completionId),
  });
}
