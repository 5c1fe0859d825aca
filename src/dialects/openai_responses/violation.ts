import { FloeError } from '../../core/errors.ts';

/** What errors call the request. */
export const WHAT = 'responses request';

/** The error for a field that was checked by hand, as core/parse.ts makes it for the others. */
export function violation(path: string, message: string): FloeError {
  return new FloeError('schema_violation', `${WHAT}: ${path}: ${message}`, { issues: [{ path, message }] });
}
