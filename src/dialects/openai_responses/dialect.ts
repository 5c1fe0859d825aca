import type { FloeError } from '../../core/errors.ts';
import type { CanonicalRequest, Dialect } from '../dialect.ts';
import { clientStatus, isContextOverflow, OPENAI_OVERFLOW_CODE, openaiErrorObject } from '../errors.ts';
import { openaiChat } from '../openai_chat/dialect.ts';
import { EVENT_STREAM, typedEvent } from '../reply-stream.ts';
import { responseId } from './identifiers.ts';
import { encodeResponse, openResponse } from './reply.ts';
import { parseResponsesCount, parseResponsesRequest } from './request.ts';
import { openResponsesStream, RESPONSES_HEARTBEAT } from './stream.ts';

/**
 * The dialect of OpenAI's Responses API. floe stores nothing for later retrieval, so there are no paths for stored responses or
 * conversations.
 */
export const openaiResponses: Dialect = {
  name: 'openai_responses',
  routes: [
    { method: 'POST', path: '/v1/responses', kind: 'generate' },
    { method: 'POST', path: '/responses', kind: 'generate' },
    { method: 'POST', path: '/v1/responses/input_tokens', kind: 'count_tokens' },
    { method: 'POST', path: '/responses/input_tokens', kind: 'count_tokens' },
  ],
  parseRequest: parseResponsesRequest,
  parseCount: parseResponsesCount,
  encodeReply: encodeResponse,
  openStream: openResponsesStream,
  // The start is sent first, because the official client's accumulator fails on any event before `response.created`.
  framing: () => ({ contentType: EVENT_STREAM, heartbeat: RESPONSES_HEARTBEAT, startsFirst: true }),
  encodeModels: openaiChat.encodeModels,
  encodeModel: openaiChat.encodeModel,
  encodeCount: (tokens) => JSON.stringify({ object: 'response.input_tokens', input_tokens: tokens }),
  encodeError: (error) => ({ status: clientStatus(error), body: JSON.stringify(openaiErrorObject(error)) }),
  encodeStreamError,
};

/**
 * Sequence number of an error event. The stream's own numbers are not available here, so it is higher than all of them; it fits into 32
 * bits, which clients in typed languages require.
 */
const LAST_SEQUENCE_NUMBER = 2 ** 31 - 1;

/**
 * Encodes an error as two events, `error` and `response.failed`, because clients handle one or the other: Codex reads only
 * `response.failed`. The `error` event is flat, as the API documents it. With an `error` object in it, the official SDK throws before a
 * client such as pi has read the code by which it decides whether to retry.
 */
function encodeStreamError(error: FloeError, request: CanonicalRequest): string {
  const { message } = error;
  const code = failureCode(error);
  const head = { completionId: 'failed', model: request.model, createdMs: 0, promptTokens: null };
  const response = {
    ...openResponse(head, request),
    id: responseId('failed'),
    status: 'failed',
    error: { code, message },
  };
  return (
    typedEvent('error', {
      sequence_number: LAST_SEQUENCE_NUMBER - 1,
      code,
      message,
      param: null,
    }) + typedEvent('response.failed', { sequence_number: LAST_SEQUENCE_NUMBER, response })
  );
}

/** Converts an error to one of the codes that clients know. They decide by the code whether to retry a failed stream. */
function failureCode(error: FloeError): string {
  if (isContextOverflow(error)) return OPENAI_OVERFLOW_CODE;
  const status = clientStatus(error);
  if (status === 429) return 'rate_limit_exceeded';
  return status < 500 ? 'invalid_prompt' : 'server_error';
}
