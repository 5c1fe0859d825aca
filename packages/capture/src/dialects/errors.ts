import type { FloeError } from '@floe-rl/core';

/** Error code of the OpenAI dialects for a prompt that exceeds the context window. */
export const OPENAI_OVERFLOW_CODE = 'context_length_exceeded';

/**
 * Returns the HTTP status that a harness gets for this error. Status 422 becomes 400, because harnesses handle only 400 as an invalid
 * request.
 */
export function clientStatus(error: FloeError): number {
  return error.status === 422 ? 400 : error.status;
}

/** Whether the engine reported that prompt and reply exceed its context window. */
export function isContextOverflow(error: FloeError): boolean {
  return error.details.context_overflow === true;
}

/** Makes the error object of a response in the OpenAI chat and OpenAI Responses dialects. */
export function openaiErrorObject(error: FloeError): object {
  return {
    error: {
      message: error.message,
      type: openaiErrorType(clientStatus(error)),
      param: null,
      code: isContextOverflow(error) ? OPENAI_OVERFLOW_CODE : error.code,
    },
  };
}

function openaiErrorType(status: number): string {
  if (status === 401) return 'authentication_error';
  if (status === 429) return 'rate_limit_error';
  return status < 500 ? 'invalid_request_error' : 'server_error';
}
