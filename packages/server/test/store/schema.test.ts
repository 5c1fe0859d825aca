import { createHash } from 'node:crypto';
import { expect, it } from 'vitest';
import { POSTGRES_SCHEMA } from '../../src/store/postgres/schema.ts';
import { SCHEMA_FORMAT, type SchemaDialect, schemaSql } from '../../src/store/sql/schema.ts';
import { SQLITE_SCHEMA } from '../../src/store/sqlite/schema.ts';

/** The digest of the tables of each database. Existing databases have these tables, and store the number of their format. */
const EXISTING = {
  format: 17,
  sqlite: '1b64a3420c6c78cc0d8815bb7a7a58bcce55cd3d906e8f0663ea61d78f7ad1bd',
  postgres: 'bac5944e2f892d7705657a2aa86b20a5f0a968d35a3eb4a532a04655cf0fb175',
};

it('tables change only together with the number of their format', () => {
  const current = { format: SCHEMA_FORMAT, sqlite: digest(SQLITE_SCHEMA), postgres: digest(POSTGRES_SCHEMA) };
  expect(current, 'existing databases lack the change: increment SCHEMA_FORMAT, then update the digests here').toEqual(
    EXISTING,
  );
});

it('SQLite and PostgreSQL have the same tables', () => {
  expect(tables(SQLITE_SCHEMA)).toEqual(tables(POSTGRES_SCHEMA));
  expect(tables(SQLITE_SCHEMA)).toContain('session_words');
});

/** Returns the SHA-256 of the SQL that creates the tables. It does not depend on line breaks and indentation. */
function digest(dialect: SchemaDialect): string {
  const text = schemaSql(dialect).replaceAll(/\s+/g, ' ').replaceAll(' ;', ';');
  return createHash('sha256').update(text).digest('hex');
}

/** Returns the names of the tables in the order of their creation. */
function tables(dialect: SchemaDialect): string[] {
  return [...schemaSql(dialect).matchAll(/^ *create (?:virtual )?table (\w+)/gm)].map(([, name = '']) => name);
}
