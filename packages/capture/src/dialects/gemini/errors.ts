import type { FloeError } from '@floe-rl/core';
import { clientStatus } from '../errors.ts';

const RETRY_INFO = 'type.googleapis.com/google.rpc.RetryInfo';

/** Encodes an error as JSON, as a response or in a stream. */
export function errorJson(error: FloeError): string {
  const code = clientStatus(error);
  const wait = error.details.retry_after_ms;
  const details =
    typeof wait === 'number' && (code === 429 || code === 503)
      ? { details: [{ '@type': RETRY_INFO, retryDelay: `${Math.max(1, Math.ceil(wait / 1000))}s` }] }
      : {};
  return JSON.stringify({ error: { code, message: error.message, status: statusName(code), ...details } });
}

function statusName(code: number): string {
  switch (code) {
    case 401:
      return 'UNAUTHENTICATED';
    case 403:
      return 'PERMISSION_DENIED';
    case 404:
      return 'NOT_FOUND';
    case 409:
      return 'ABORTED';
    case 410:
      return 'FAILED_PRECONDITION';
    case 429:
      return 'RESOURCE_EXHAUSTED';
    case 503:
      return 'UNAVAILABLE';
    case 504:
      return 'DEADLINE_EXCEEDED';
    default:
      return code < 500 ? 'INVALID_ARGUMENT' : 'INTERNAL';
  }
}
