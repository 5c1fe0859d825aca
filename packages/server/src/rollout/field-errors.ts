import { type FloeError, fieldError } from '@floe-rl/core';

/** Returns the error for a field of a request body with a wrong value. */
export function bodyError(path: string, message: string): FloeError {
  return fieldError(path, message, { input: 'body' });
}

/** Returns the error for a query parameter with a wrong value. */
export function queryError(path: string, message: string): FloeError {
  return fieldError(path, message, { input: 'query' });
}
