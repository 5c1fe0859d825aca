import type { FloeError } from '@floe-rl/core';
import { clientStatus, isContextOverflow } from '../errors.ts';

/** Makes the object of an error, as a response or as an event of a stream. */
export function errorObject(error: FloeError): object {
  const lost = lostThreadOf(error);
  if (lost !== null) {
    const message = `thread.previous_message_id: there is no response ${lost} in this session`;
    // The official clients react to this error code by sending the whole conversation instead of only the new messages.
    return { type: 'error', error: { type: 'not_found_error', message, details: { error_code: 'thread_not_found' } } };
  }
  // Clients recognise an overlong prompt by the words `prompt is too long` at the start of the message. The message of the engine follows.
  const message = isContextOverflow(error) ? `prompt is too long: ${error.message}` : error.message;
  return { type: 'error', error: { type: errorType(clientStatus(error)), message } };
}

/**
 * Returns the id of the earlier reply that a request continues and that the session does not contain; `null` when the error has another
 * cause.
 */
export function lostThreadOf(error: FloeError): string | null {
  const { unknown_response } = error.details;
  return typeof unknown_response === 'string' ? unknown_response : null;
}

function errorType(status: number): string {
  switch (status) {
    case 401:
      return 'authentication_error';
    case 403:
      return 'permission_error';
    case 404:
      return 'not_found_error';
    case 413:
      return 'request_too_large';
    case 429:
      return 'rate_limit_error';
    case 503:
      return 'overloaded_error';
    case 504:
      return 'timeout_error';
    default:
      return status < 500 ? 'invalid_request_error' : 'api_error';
  }
}
