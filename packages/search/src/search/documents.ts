import { open, readdir } from 'node:fs/promises';
import { basename, extname, join, relative, sep } from 'node:path';
import { asFloeError, FloeError, MIB, parseAs, systemError } from '@floe-rl/core';
import { readAllRows } from '@floe-rl/core/rows';
import { z } from 'zod';
import { pageText } from './html/page-text.ts';
import type { StoredDocument } from './search.ts';

/** Extensions of the files of a folder that are indexed. */
const TEXT_FILES: ReadonlySet<string> = new Set(['.txt', '.text', '.md', '.markdown', '.rst', '.html', '.htm']);
const ROW_FILES: ReadonlySet<string> = new Set(['.jsonl', '.json', '.parquet']);
/** Maximum size in bytes of a file in a folder. */
const MAX_FILE_BYTES = 32 * MIB;

/** A document, or the error of a row or file that cannot be read as a document. `where` names the file and the line. */
export type FoundDocument =
  | { readonly where: string; readonly document: StoredDocument }
  | { readonly where: string; readonly error: FloeError };

const text = (what: string) => z.string({ error: (issue) => (issue.input === undefined ? 'is missing' : what) });

const rowSchema = z.object({
  id: z
    .union([z.string().min(1), z.int()], { error: 'must be a text that is not empty, or a number' })
    .transform(String),
  title: text('must be a text').nullish(),
  url: text('must be a text').nullish(),
  text: text('must be a text').refine((value) => value.trim() !== '', 'must not be empty'),
});

/**
 * Reads the documents of a folder of text, Markdown and HTML files, or the rows of a `.jsonl` or `.json` file. A row has the form `{id,
 * title?, url?, text}`; other fields are ignored. Throws `setup_failed` when the folder or file cannot be read.
 */
export function readDocuments(path: string): AsyncGenerator<FoundDocument> {
  return ROW_FILES.has(extname(path).toLowerCase()) ? documentsOfRows(path) : documentsOfFolder(path);
}

async function* documentsOfRows(path: string): AsyncGenerator<FoundDocument> {
  for await (const row of readAllRows(path)) {
    if ('error' in row) yield row;
    else yield documentOrError(row.where, () => documentOf(row.fields, row.where));
  }
}

function documentOf(fields: unknown, where: string): StoredDocument {
  const { id, title, url, text: content } = parseAs(rowSchema, fields, where);
  return { id, title: title ?? '', url: url ?? null, text: content };
}

async function* documentsOfFolder(folder: string): AsyncGenerator<FoundDocument> {
  for (const path of await textFilesOf(folder)) {
    const id = relative(folder, path).split(sep).join('/');
    const found = await fileText(path, id).then(
      (document) => ({ where: path, document }),
      (thrown: unknown) => ({ where: path, error: systemError(thrown) ?? asFloeError(thrown) }),
    );
    if ('error' in found && found.error.code === 'setup_failed') throw found.error;
    yield found;
  }
}

/** Returns the paths of the files in the order of their names. Links are not followed, and names that begin with a dot are left out. */
async function textFilesOf(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { withFileTypes: true, recursive: true }).catch((cause: Error) => {
    const hint = 'name a folder of texts, or a file .jsonl or .json of rows {id, title, url, text}';
    throw new FloeError('setup_failed', `cannot read ${folder}: ${cause.message}; ${hint}`, { file: folder }, cause);
  });
  return entries
    .filter((entry) => entry.isFile() && TEXT_FILES.has(extname(entry.name).toLowerCase()))
    .map((entry) => join(entry.parentPath, entry.name))
    .filter(
      (path) =>
        !relative(folder, path)
          .split(sep)
          .some((part) => part.startsWith('.')),
    )
    .sort();
}

async function fileText(path: string, id: string): Promise<StoredDocument> {
  const content = await readText(path);
  if (/\.html?$/i.test(path)) {
    const { title, text: body } = await pageText(content);
    return checked({ id, title: title || basename(path), url: null, text: body }, path);
  }
  const heading = /^#{1,2}[ \t]+(\S.*)$/m.exec(content.slice(0, 10_000))?.[1]?.trim();
  return checked({ id, title: heading ?? basename(path), url: null, text: content }, path);
}

async function readText(path: string): Promise<string> {
  const file = await open(path);
  try {
    const { size } = await file.stat();
    if (size > MAX_FILE_BYTES) throw unusable(path, `is larger than ${MAX_FILE_BYTES / MIB} MiB`);
    const bytes = await file.readFile();
    if (bytes.includes(0)) throw unusable(path, 'is not a text');
    return bytes.toString('utf8');
  } finally {
    await file.close();
  }
}

function checked(document: StoredDocument, path: string): StoredDocument {
  if (document.text.trim() === '') throw unusable(path, 'has no text');
  return document;
}

function unusable(path: string, problem: string): FloeError {
  return new FloeError('schema_violation', `${path}: ${problem}`, { file: path });
}

function documentOrError(where: string, read: () => StoredDocument): FoundDocument {
  try {
    return { where, document: read() };
  } catch (thrown) {
    if (!FloeError.is(thrown)) throw thrown;
    return { where, error: thrown };
  }
}
