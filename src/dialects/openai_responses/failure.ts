import type { FloeError } from '../../core/errors.ts';
import type { CanonicalRequest } from '../dialect.ts';
import { harnessStatus, isContextOverflow } from '../errors.ts';
import { typedEvent } from '../server-sent.ts';
import { responseId } from './identifiers.ts';
import { openResponse } from './reply.ts';

const OVERFLOW = 'context_length_exceeded';

/** Above every number of the stream, which is not known here; clients in typed languages read it into 32 bits. */
const LAST_SEQUENCE_NUMBER = 2 ** 31 - 1;

export function encodeResponsesError(error: FloeError): { status: number; body: string } {
  const status = harnessStatus(error);
  const code = isContextOverflow(error) ? OVERFLOW : error.code;
  return {
    status,
    body: JSON.stringify({ error: { message: error.message, type: errorType(status), param: null, code } }),
  };
}

/**
 * Both events that tell of a failure, because clients look for one or the other: Codex reads `response.failed` alone. The first
 * is flat, as the API describes it: an `error` object in it makes the official SDK throw before a client such as pi has seen
 * the code, by which it decides about trying again.
 */
export function encodeResponsesStreamError(error: FloeError, request: CanonicalRequest): string {
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

/** Clients repeat a failed stream by its code: these are the ones that they know. */
function failureCode(error: FloeError): string {
  if (isContextOverflow(error)) return OVERFLOW;
  const status = harnessStatus(error);
  if (status === 429) return 'rate_limit_exceeded';
  return status < 500 ? 'invalid_prompt' : 'server_error';
}

function errorType(status: number): string {
  if (status === 401) return 'authentication_error';
  if (status === 429) return 'rate_limit_error';
  return status < 500 ? 'invalid_request_error' : 'server_error';
}
