import type { FloeError } from '@floe-rl/core';
import pg from 'pg';
import { describe, expect, it } from 'vitest';
import { asStoreError, isMisconfigured } from '../../src/store/postgres/failures.ts';

/** An error that the database server reports with the SQLSTATE `code`. */
function reported(code: string): pg.DatabaseError {
  const error = new pg.DatabaseError('the server says so', 20, 'error');
  error.code = code;
  return error;
}

describe('an error of the database server', () => {
  it.each([
    ['08006', 'a broken connection'],
    ['25006', 'a transaction that writes after a failover'],
    ['25P03', 'a transaction that was idle for too long'],
    ['28P01', 'a wrong password'],
    ['3D000', 'a missing database'],
    ['40001', 'a serialization failure'],
    ['53100', 'a full disk'],
    ['55P03', 'a lock that was not available in time'],
    ['57P01', 'a server that is being stopped'],
    ['58030', 'an I/O error'],
    ['XX000', 'an internal error'],
  ])('with the code %s, %s, makes the store unavailable', (code) => {
    expect(asStoreError(reported(code))).toMatchObject({ code: 'store_unavailable', details: { code } });
  });

  it('with the code of a value that cannot be stored is the error of that value', () => {
    expect(asStoreError(reported('22P05'))).toMatchObject({ code: 'schema_violation', details: { code: '22P05' } });
  });

  it('with the code of a violated constraint is returned unchanged', () => {
    const error = reported('23503');
    expect(asStoreError(error)).toBe(error);
  });

  it.each([
    ['28P01', true],
    ['3D000', true],
    ['53100', false],
  ])('with the code %s is a configuration error: %s', (code, expected) => {
    expect(isMisconfigured(asStoreError(reported(code)) as FloeError)).toBe(expected);
  });
});
