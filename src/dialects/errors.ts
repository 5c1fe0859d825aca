import type { FloeError } from '../core/errors.ts';

/** The HTTP status that harnesses understand: they know 400 for a refused request, not 422. */
export function harnessStatus(error: FloeError): number {
  return error.status === 422 ? 400 : error.status;
}

/** The engine said that prompt and reply do not fit its context. */
export function isContextOverflow(error: FloeError): boolean {
  return error.details.context_overflow === true;
}
