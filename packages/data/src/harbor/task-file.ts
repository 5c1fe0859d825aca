import { stat } from 'node:fs/promises';
import { FloeError, fieldErrors } from '@floe-rl/core';
import type { z } from 'zod';

type Issue = { readonly path: string; readonly message: string; readonly line: number | null };

/** Finds the line of a key in a file, counted from 1; `null` when the key is not in the file. */
export type LineFinder = (path: readonly PropertyKey[]) => number | null;

/**
 * Parses the content of a file with a schema. Throws `schema_violation` with a message that names the file, the line and the key of the first
 * invalid value. `details.issues` lists all of them.
 */
export function parseFile<T extends z.ZodType>(
  schema: T,
  value: unknown,
  file: string,
  lineOf: LineFinder,
): z.output<T> {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const issues = parsed.error.issues.flatMap((issue) => issuesOf(issue, lineOf));
  const [first] = issues;
  const others = issues.length > 1 ? ` (and ${issues.length - 1} more)` : '';
  const where = first?.line == null ? file : `${file}:${first.line}`;
  const message = `${where}: ${first?.path ?? ''}: ${first?.message ?? 'invalid'}${others}`;
  throw fieldErrors(issues, { text: message, details: { file, line: first?.line ?? null } });
}

function issuesOf(issue: z.core.$ZodIssue, lineOf: LineFinder): Issue[] {
  const at = (path: readonly PropertyKey[], message: string): Issue => ({
    path: path.map(String).join('.') || '(whole file)',
    message,
    line: lineOf(path),
  });
  if (issue.code !== 'unrecognized_keys') return [at(issue.path, issue.message)];
  return issue.keys.map((key) => at([...issue.path, key], 'is not a key of this format'));
}

/** Returns the error for a part of a task that floe cannot run. The message names the file and the key. */
export function unsupported(file: string, key: string, message: string): FloeError {
  return new FloeError('unsupported', `${file}: ${key}: ${message}`, { file, key });
}

/** Returns the error for a file that a task lacks. */
export function missingFile(path: string, why: string): FloeError {
  return new FloeError('setup_failed', `${path} does not exist: ${why}`, { file: path });
}

/** Whether a user is root, or not stated. */
export function isRoot(user: string | number | null): boolean {
  return user === null || user === 'root' || user === 0;
}

/** Whether a path is a regular file. */
export function isFile(path: string): Promise<boolean> {
  return stat(path).then(
    (info) => info.isFile(),
    () => false,
  );
}

/** Whether a path is a folder. */
export function isFolder(path: string): Promise<boolean> {
  return stat(path).then(
    (info) => info.isDirectory(),
    () => false,
  );
}
