import { FloeError } from '../../core/errors.ts';
import type { CanonicalRequest } from '../../dialects/dialect.ts';
import type { Completion } from '../../tokens/completion.ts';
import { quoted } from './request-limits.ts';

/**
 * The request with all of its conversation, where it names a completion that it goes on from: that one's messages, its reply, and
 * the new messages. System text at the head of the new ones replaces that at the head of the earlier ones; all else is the new
 * request's, the tools as well unless it says otherwise. `recorded`: the session's completion of that id. Throws `schema_violation` for a completion that the session did not hand out.
 */
export function continued(
  request: CanonicalRequest,
  recorded: (completionId: string) => Completion | null,
): CanonicalRequest {
  const { previousCompletionId, messages } = request;
  if (previousCompletionId === null) return request;
  const earlier = recorded(previousCompletionId);
  if (earlier === null) throw unknown(previousCompletionId);
  const history = earlier.request.messages;
  const replaces = messages[0]?.role === 'system' && history[0]?.role === 'system';
  const kept = replaces ? history.slice(1) : history;
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

/** The completion if a client could have its reply. */
export function handedOut(found: Completion | undefined): Completion | null {
  return found === undefined || found.finishReason === 'abort' ? null : found;
}

function unknown(continues: string): FloeError {
  const path = 'previous_response_id';
  const message = `no response ${quoted(continues)} in this session`;
  return new FloeError('schema_violation', `${path}: ${message}`, {
    issues: [{ path, message }],
    unknown_response: quoted(continues),
  });
}
