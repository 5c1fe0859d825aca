import { FloeError } from '../../core/errors.ts';

/** What errors call the request. */
export const WHAT = 'responses request';

/** Foreign text inside a message: bounded, and without control characters. */
export function quoted(text: string): string {
  return JSON.stringify(text.slice(0, 64));
}

/** The error for a field that was checked by hand, as core/parse.ts makes it for the others. */
export function violation(path: string, message: string): FloeError {
  return new FloeError('schema_violation', `${WHAT}: ${path}: ${message}`, { issues: [{ path, message }] });
}
