import { FloeError, fieldError, isRecord } from '@floe-rl/core';
import { plainContext } from '../../dialects/dialect.ts';
import { openaiChat } from '../../dialects/openai_chat/dialect.ts';
import { parseBody } from '../http/body.ts';
import { replyOf } from '../http/delivery.ts';
import { awaitCall, beginCall } from './direct-call.ts';
import type { ProxySession } from './session.ts';

/** Field of a request with the headers that it would have over HTTP. Agents label their calls with headers. */
const HEADERS_FIELD = 'extra_headers';

/**
 * Makes the model call of a request that is a JSON text. The text is the body of a request to `/v1/chat/completions`, with the request's
 * headers in the field `extra_headers`. The call is recorded like a call that arrives over HTTP, and its reply is never streamed. Resolves
 * with the JSON text of the reply. Rejects with the error of the call or with the reason of `signal`.
 */
export async function callFromMailbox(session: ProxySession, text: Buffer, signal: AbortSignal): Promise<string> {
  session.requests++;
  return session.bodyBudget.during(text.length, async () => {
    const { call, request } = beginCall(session, () => requestOf(session, parseBody(text)));
    return openaiChat.encodeReply(replyOf(request, await awaitCall(call, signal)), request);
  });
}

/** Returns the error of a mailbox call as the JSON text that a client over HTTP would get. */
export function mailboxError(error: FloeError): string {
  const { status, body } = openaiChat.encodeError(error);
  return JSON.stringify({ status, ...(JSON.parse(body) as object) });
}

function requestOf(session: ProxySession, body: unknown): ReturnType<typeof openaiChat.parseRequest> {
  if (!isRecord(body)) {
    throw new FloeError('schema_violation', 'the request is not a JSON object');
  }
  const { [HEADERS_FIELD]: headers = {}, ...rest } = body;
  if (!isHeaders(headers)) {
    throw fieldError(HEADERS_FIELD, 'must be an object of texts');
  }
  const lowerCase = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
  return openaiChat.parseRequest(
    { ...rest, stream: false, stream_options: undefined },
    {
      ...plainContext(lowerCase, session.spec.callRules ?? null),
      recorded: (completionId) => session.record.sentReply(completionId),
    },
  );
}

function isHeaders(value: unknown): value is Record<string, string> {
  if (typeof value !== 'object' || value === null) return false;
  return Object.values(value).every((header) => typeof header === 'string');
}
