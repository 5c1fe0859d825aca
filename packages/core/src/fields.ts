import { type ErrorCode, FloeError } from './errors.ts';

/** What is wrong with one field. The path is such as `agent.settings.size`, and the message continues a sentence that the path begins. */
export type FieldIssue = { readonly path: string; readonly message: string };

type FieldErrorOptions = {
  /** What has the field, such as `body` or `query`. The message of the error begins with it; the paths do not. */
  readonly input?: string;
  /** Message of the error. By default, it is made of the first issue and the number of others. */
  readonly text?: string;
  /** The default is `schema_violation`. */
  readonly code?: ErrorCode;
  /** Details of the error next to `issues`. */
  readonly details?: Readonly<Record<string, unknown>>;
  readonly cause?: unknown;
};

/** Returns the error for one field with a wrong value. `details.issues` has the path and the message. */
export function fieldError(path: string, message: string, options: FieldErrorOptions = {}): FloeError {
  return fieldErrors([{ path, message }], options);
}

/** Returns the error for fields with wrong values. Its message has the first of them, and `details.issues` has all. */
export function fieldErrors(issues: readonly FieldIssue[], options: FieldErrorOptions = {}): FloeError {
  const { input, text = textOfIssues(issues), code = 'schema_violation', details = {}, cause } = options;
  const message = input === undefined ? text : `${input}: ${text}`;
  return new FloeError(code, message, { ...details, issues }, cause);
}

function textOfIssues([first, ...others]: readonly FieldIssue[]): string {
  if (first === undefined) return 'invalid';
  return `${first.path}: ${first.message}${others.length === 0 ? '' : ` (and ${others.length} more)`}`;
}
