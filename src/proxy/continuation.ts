import { FloeError } from '../core/errors.ts';
import type { CanonicalRequest } from '../dialects/dialect.ts';
import type { Completion } from '../tokens/completion.ts';
import { quoted } from './models.ts';

/**
 * The request with all of its conversation, where it names a completion that it goes on from: that one's messages, its reply, and
 * the new messages. System text at the head of the new ones replaces that at the head of the earlier ones; all else is the new
 * request's, the tools as well unless it says otherwise. Throws `schema_violation` for a completion that the session did not hand out.
 */
export function continued(request: CanonicalRequest, recorded: readonly Completion[]): CanonicalRequest {
  const { continues, messages } = request;
  if (continues === null) return request;
  const earlier = handedOut(continues, recorded);
  if (earlier === null) throw unknown(continues);
  const history = earlier.request.messages;
  const replaces = messages[0]?.role === 'system' && history[0]?.role === 'system';
  const kept = replaces ? history.slice(1) : history;
  const [head, rest] = messages[0]?.role === 'system' ? [messages.slice(0, 1), messages.slice(1)] : [[], messages];
  const tools = request.continuesTools === true ? earlier.request.tools : request.tools;
  return { ...request, tools, messages: [...head, ...kept, earlier.message, ...rest], continues: null };
}

/** The completion of that id whose reply a client could have; null when there is none. */
export function handedOut(completionId: string, recorded: readonly Completion[]): Completion | null {
  const found = recorded.findLast((completion) => completion.completionId === completionId);
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
