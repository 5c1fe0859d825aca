import pg from 'pg';
import { FloeError } from '../../core/errors.ts';

/**
 * SQLSTATE codes, and classes (their first two characters), with which the server says that it cannot do its work now, whatever the
 * statement: broken connections (08), transactions that it ended (25P03 and 25006, which a failed-over server gives), bad credentials
 * (28), missing databases (3D), exhausted resources such as a full disk (53), interventions and timeouts (57, 55P03), failures
 * of the system (58) and of itself (XX).
 */
const UNAVAILABLE = ['08', '25006', '25P03', '28', '3D', '53', '55P03', '57', '58', 'XX'];

/** Another transaction got in the way: serialisation failure, deadlock, and a row that another one added at the same time. */
const IN_THE_WAY = ['40001', '40P01', '23505'];

/** Class of values that a column cannot hold: a text with a NUL, a number that is too large. */
const UNSTORABLE = '22';

/** Credentials (28) and the database's name (3D): while floe starts they are wrong, later the operator is changing them. */
const MISCONFIGURED = ['28', '3D'];

export function isMisconfigured({ details }: FloeError): boolean {
  return MISCONFIGURED.some((prefix) => typeof details.code === 'string' && details.code.startsWith(prefix));
}

/** Whether the same work may succeed when it is simply done again. */
export function isInTheWay(thrown: unknown): boolean {
  return thrown instanceof pg.DatabaseError && IN_THE_WAY.includes(thrown.code ?? '');
}

/** What the driver threw: what is no answer of the server is a broken connection, which becomes `store_unavailable`. */
export function asDriverError(thrown: unknown): unknown {
  // A value that cannot be sent is a defect of the caller.
  if (!(thrown instanceof Error) || thrown instanceof pg.DatabaseError || thrown instanceof TypeError) return thrown;
  return unavailable(`the database cannot be reached: ${thrown.message}`, thrown);
}

/**
 * A server's answer, as the store's callers get it: `store_unavailable` from one that is full, overloaded or being
 * stopped; a violated constraint is a defect and stays what it is.
 */
export function asStoreError(thrown: unknown): unknown {
  if (!(thrown instanceof pg.DatabaseError)) return thrown;
  const code = thrown.code ?? '';
  if (code.startsWith(UNSTORABLE)) {
    return new FloeError('schema_violation', `a value cannot be stored: ${thrown.message}`, { code }, thrown);
  }
  if (code.startsWith('40') || UNAVAILABLE.some((prefix) => code.startsWith(prefix))) {
    return unavailable(`the database refused: ${thrown.message} (${code})`, thrown, code);
  }
  return thrown;
}

export function unavailable(message: string, cause: unknown, code: string | null = null): FloeError {
  return new FloeError('store_unavailable', message, code === null ? {} : { code }, cause);
}
