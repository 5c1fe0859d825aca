import { FloeError } from '@floe-rl/core';
import pg from 'pg';

/**
 * SQLSTATE codes, and classes (the first two characters of a code), of failures that make the database unavailable for any statement:
 * - 08: broken connections
 * - 25P03, and 25006 after a failover: transactions that the server ended
 * - 28: wrong credentials
 * - 3D: missing databases
 * - 53: exhausted resources such as a full disk
 * - 55P03 and 57: timeouts and interventions
 * - 58: system errors
 * - XX: internal errors
 */
const UNAVAILABLE = ['08', '25006', '25P03', '28', '3D', '53', '55P03', '57', '58', 'XX'];

/**
 * SQLSTATE codes of a conflict with a concurrent transaction: a serialization failure, a deadlock, or a row that both transactions
 * inserted.
 */
const CONFLICTS = ['40001', '40P01', '23505'];

/** SQLSTATE class of errors for values that a column cannot store, such as a text with a NUL or a number that is too large. */
const UNSTORABLE = '22';

/**
 * SQLSTATE classes of wrong credentials (28) and a missing database (3D). While a floe server starts, these are configuration errors.
 * Later, the operator may be changing the database, so they count as an outage.
 */
const MISCONFIGURED = ['28', '3D'];

export function isMisconfigured({ details }: FloeError): boolean {
  return MISCONFIGURED.some((prefix) => typeof details.code === 'string' && details.code.startsWith(prefix));
}

/** Whether a transaction failed because of a concurrent transaction, so that a retry may succeed. */
export function isConflict(thrown: unknown): boolean {
  return thrown instanceof pg.DatabaseError && CONFLICTS.includes(thrown.code ?? '');
}

/** Converts an error of the connection to `store_unavailable`. Errors that the database server reported are returned unchanged. */
export function asDriverError(thrown: unknown): unknown {
  // A TypeError is thrown for a value that cannot be sent to the database, which is a defect of the caller and not an outage.
  if (!(thrown instanceof Error) || thrown instanceof pg.DatabaseError || thrown instanceof TypeError) return thrown;
  return unavailable(`the database cannot be reached: ${thrown.message}`, thrown);
}

/**
 * Converts an error of the database server to the error that the store throws: `store_unavailable` when the server is full, overloaded or
 * stopping, and `schema_violation` for a value that cannot be stored. A violated constraint is a defect of floe and is returned unchanged.
 */
export function asStoreError(thrown: unknown): unknown {
  if (!(thrown instanceof pg.DatabaseError)) return thrown;
  const code = thrown.code ?? '';
  if (code.startsWith(UNSTORABLE)) {
    return new FloeError('schema_violation', `a value cannot be stored: ${thrown.message}`, { code }, thrown);
  }
  if (code.startsWith('40') || UNAVAILABLE.some((prefix) => code.startsWith(prefix))) {
    return unavailable(`the database refused a transaction: ${thrown.message} (${code})`, thrown, code);
  }
  return thrown;
}

export function unavailable(message: string, cause: unknown, code: string | null = null): FloeError {
  return new FloeError('store_unavailable', message, code === null ? {} : { code }, cause);
}
