import { existsSync, statSync } from 'node:fs';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { FloeError, messageOf } from '@floe-rl/core';
import Libsql from 'libsql';
import type { StoredDocument } from './search.ts';

/** Number in the header that identifies an index file: `flix` in ASCII. */
const APPLICATION_ID = 0x666c6978;
/** Format of the tables. */
const FORMAT = 1;

/** The SQL that creates the tables of an index. The text of a document is the text of its passages, joined in the order of `start`. */
export const INDEX_TABLES = `
  pragma application_id = ${APPLICATION_ID};
  pragma user_version = ${FORMAT};
  create table settings (name text primary key, value text not null) without rowid;
  create table documents (number integer primary key, id text not null unique, title text not null, url text);
  create table passages (number integer primary key, document integer not null, start integer not null, text text not null);
  create index passages_of_document on passages (document, start);
  create virtual table words using fts5(title, text, content='', tokenize='porter unicode61 remove_diacritics 2');
  create table vectors (passage integer primary key, vector blob not null);
`;

/** A passage that matches a query, with the fields of its document. */
export type Passage = {
  readonly id: string;
  readonly title: string;
  readonly url: string | null;
  readonly text: string;
};

/** The model that made the vectors of an index, and the length of each vector; `null` for an index without vectors. */
type VectorSettings = { readonly model: string; readonly dimensions: number };

/** An index that `floe index` made. It is opened for reading only, so any number of processes can share the file. */
export class IndexFile {
  readonly path: string;
  readonly vectors: VectorSettings | null;
  readonly passageCount: number;
  private readonly raw: Libsql.Database;
  private readonly statements = new Map<string, Libsql.Statement>();

  /** Throws `setup_failed` for a file that is missing, is no index or has another format. */
  constructor(path: string) {
    this.path = path;
    this.raw = openReadOnly(path);
    try {
      this.check();
      const settings = this.settings();
      this.passageCount = Number(settings.get('passages'));
      this.vectors = vectorSettings(settings);
    } catch (error) {
      this.raw.close();
      throw FloeError.is(error) ? error : broken(path, error);
    }
  }

  /** Runs a query and returns its rows. Throws `setup_failed` when the file is broken. */
  rows<Row>(sql: string, ...values: readonly (string | number)[]): readonly Row[] {
    try {
      return this.statement(sql).all(...values) as Row[];
    } catch (error) {
      throw broken(this.path, error);
    }
  }

  passage(number: number): Passage {
    const [row] = this.rows<Passage>(
      'select id, title, url, text from passages join documents on documents.number = passages.document where passages.number = ?',
      number,
    );
    if (row === undefined) throw broken(this.path, `it has no passage ${number}`);
    return row;
  }

  /** Returns the document with this id, or with this URL; `null` when there is none. */
  document(id: string): StoredDocument | null {
    const [found] = this.rows<Omit<StoredDocument, 'text'> & { readonly number: number }>(
      'select number, id, title, url from documents where id = ? union all select number, id, title, url from documents where url = ? limit 1',
      id,
      id,
    );
    if (found === undefined) return null;
    const { number, ...document } = found;
    const texts = this.rows<{ text: string }>('select text from passages where document = ? order by start', number);
    return { ...document, text: texts.map(({ text }) => text).join('') };
  }

  close(): void {
    this.statements.clear();
    this.raw.close();
  }

  private statement(sql: string): Libsql.Statement {
    const known = this.statements.get(sql);
    if (known !== undefined) return known;
    const statement = this.raw.prepare(sql);
    this.statements.set(sql, statement);
    return statement;
  }

  private check(): void {
    const [application] = this.rows<{ application_id: number }>('pragma application_id');
    const [format] = this.rows<{ user_version: number }>('pragma user_version');
    if (application?.application_id !== APPLICATION_ID) {
      throw new FloeError('setup_failed', `${this.path} is no index of floe; make one with: floe index`, {
        path: this.path,
      });
    }
    if (format?.user_version !== FORMAT) {
      const message = `${this.path} has the format ${format?.user_version}, and this floe reads ${FORMAT}; make the index again with: floe index`;
      throw new FloeError('setup_failed', message, { path: this.path });
    }
  }

  private settings(): ReadonlyMap<string, string> {
    const rows = this.rows<{ name: string; value: string }>('select name, value from settings');
    const settings = new Map(rows.map(({ name, value }) => [name, value]));
    if (!settings.has('passages')) throw broken(this.path, 'it is incomplete');
    return settings;
  }
}

function vectorSettings(settings: ReadonlyMap<string, string>): VectorSettings | null {
  const model = settings.get('embedding_model');
  return model === undefined ? null : { model, dimensions: Number(settings.get('dimensions')) };
}

function openReadOnly(path: string): Libsql.Database {
  if (!existsSync(path)) {
    throw new FloeError('setup_failed', `there is no index ${path}; make one with: floe index DOCUMENTS -o ${path}`, {
      path,
    });
  }
  if (!statSync(path).isFile()) throw new FloeError('setup_failed', `the index ${path} is not a file`, { path });
  try {
    // With `immutable`, SQLite does not take locks and does not check for a journal. A file that is only read needs neither.
    return new Libsql(`${pathToFileURL(resolve(path)).href}?mode=ro&immutable=1`);
  } catch (error) {
    throw broken(path, error);
  }
}

function broken(path: string, error: unknown): FloeError {
  const reason = messageOf(error);
  const message = `the index ${path} cannot be read: ${reason}; make it again with: floe index`;
  return new FloeError('setup_failed', message, { path }, error instanceof Error ? error : undefined);
}
