import { existsSync, linkSync, renameSync, rmSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { FloeError, messageOf, systemError } from '@floe-rl/core';
import Libsql from 'libsql';
import { type FoundDocument, readDocuments } from './documents.ts';
import type { Embeddings } from './embeddings.ts';
import { INDEX_TABLES } from './index-file.ts';
import { passagesOf } from './passages.ts';
import type { StoredDocument } from './search.ts';

/** Number of passages in one request for vectors, and maximum number of concurrent requests. */
const EMBEDDED_TOGETHER = 64;
const REQUESTS_AT_A_TIME = 4;

export type BuildOptions = {
  /** Path of a folder of texts, or of a file of rows. */
  readonly source: string;
  readonly output: string;
  /** Whether an existing file is replaced. */
  readonly replaces: boolean;
  /** Makes vectors for the index; `null` for an index of words only. */
  readonly embeddings: Embeddings | null;
  /** Called for each row or file that cannot be read as a document. */
  readonly onBadRow: (where: string, error: FloeError) => void;
  /** Called when all documents were read. When it throws, no index is made. */
  readonly mayFinish: () => void;
  readonly onProgress: (progress: BuildSummary) => void;
};

export type BuildSummary = { readonly documents: number; readonly passages: number; readonly embedded: number };

/**
 * Makes an index. The file appears only when it is complete. Rejects with `conflict` when the file exists already, and with `schema_violation`
 * when the source has no documents. Rejects with `setup_failed` when a file cannot be read or written, or with the reason of `signal`.
 */
export async function buildIndex(options: BuildOptions, signal: AbortSignal): Promise<BuildSummary> {
  const output = resolve(options.output);
  if (!options.replaces && existsSync(output)) throw alreadyThere(options.output);
  const unfinished = `${output}.${process.pid}.unfinished`;
  if (!existsSync(dirname(output))) {
    throw new FloeError('setup_failed', `there is no folder ${dirname(output)} for the index`, { path: output });
  }
  try {
    const summary = await writeIndex(unfinished, options, signal);
    publish(unfinished, output, options);
    return summary;
  } finally {
    for (const suffix of ['', '-journal', '-wal', '-shm']) rmSync(`${unfinished}${suffix}`, { force: true });
  }
}

/** Gives the finished file its name. With `replaces` unset, a file that has appeared under this name since is not replaced. */
function publish(unfinished: string, output: string, { replaces, output: name }: BuildOptions): void {
  if (replaces) {
    renameSync(unfinished, output);
    return;
  }
  try {
    linkSync(unfinished, output);
  } catch (error) {
    throw (error as NodeJS.ErrnoException).code === 'EEXIST' ? alreadyThere(name) : error;
  }
}

function alreadyThere(path: string): FloeError {
  return new FloeError('conflict', `${path} exists; replace it with --force, or choose another file`, { path });
}

async function writeIndex(path: string, options: BuildOptions, signal: AbortSignal): Promise<BuildSummary> {
  rmSync(path, { force: true });
  const raw = new Libsql(path);
  try {
    // A build that is interrupted leaves no index, so there is nothing to recover.
    raw.exec(`pragma journal_mode = off; pragma synchronous = off; ${INDEX_TABLES}; begin`);
    const writer = new IndexWriter(raw);
    for await (const found of readDocuments(options.source)) {
      signal.throwIfAborted();
      addFound(writer, found, options);
    }
    options.mayFinish();
    if (writer.documents === 0) {
      throw new FloeError('schema_violation', `${options.source} has no documents`, { file: options.source });
    }
    if (options.embeddings !== null) await embed(writer, options.embeddings, options, signal);
    raw.exec(`
      insert into words(words) values ('optimize');
      insert into settings values ('documents', '${writer.documents}'), ('passages', '${writer.passages}');
      commit; analyze; pragma synchronous = full; vacuum`);
    return writer.summary();
  } catch (error) {
    throw FloeError.is(error) || signal.aborted ? error : (systemError(error) ?? unwritable(path, error));
  } finally {
    raw.close();
  }
}

function unwritable(path: string, error: unknown): FloeError {
  const reason = messageOf(error);
  return new FloeError('setup_failed', `the index ${path} cannot be written: ${reason}`, { path }, error);
}

function addFound(writer: IndexWriter, found: FoundDocument, { onBadRow, onProgress }: BuildOptions): void {
  const error = 'error' in found ? found.error : duplicate(found, writer.add(found.document, found.where));
  if (error === null) onProgress(writer.summary());
  else onBadRow(found.where, error);
}

/**
 * Returns the error for a document with the same id as an earlier document. `earlier` states where the earlier document is; `null` when there
 * is none, and then the result is `null` too.
 */
function duplicate(
  { document, where }: Extract<FoundDocument, { document: StoredDocument }>,
  earlier: string | null,
): FloeError | null {
  if (earlier === null) return null;
  const message = `${where}: id: ${document.id} is also the id of ${earlier}`;
  return new FloeError('schema_violation', message, { row: where, field: 'id' });
}

class IndexWriter {
  documents = 0;
  passages = 0;
  embedded = 0;
  private readonly raw: Libsql.Database;
  /** The place in the source of each document, by the document's id. */
  private readonly places = new Map<string, string>();
  private readonly insertDocument: Libsql.Statement;
  private readonly insertPassage: Libsql.Statement;
  private readonly insertWords: Libsql.Statement;
  private readonly insertVector: Libsql.Statement;

  constructor(raw: Libsql.Database) {
    this.raw = raw;
    this.insertDocument = raw.prepare('insert into documents values (?, ?, ?, ?)');
    this.insertPassage = raw.prepare('insert into passages values (?, ?, ?, ?)');
    this.insertWords = raw.prepare('insert into words (rowid, title, text) values (?, ?, ?)');
    this.insertVector = raw.prepare('insert into vectors values (?, ?)');
  }

  /** Adds a document. When the index already has a document with the same id, returns the place of that document instead; otherwise `null`. */
  add({ id, title, url, text }: StoredDocument, where: string): string | null {
    const earlier = this.places.get(id);
    if (earlier !== undefined) return earlier;
    this.places.set(id, where);
    const document = ++this.documents;
    this.insertDocument.run(document, id, title, url);
    let start = 0;
    for (const passage of passagesOf(text)) {
      const number = ++this.passages;
      this.insertPassage.run(number, document, start, passage);
      this.insertWords.run(number, title, passage);
      start += passage.length;
    }
    return null;
  }

  /** Returns the texts that are embedded for `count` passages, beginning with the passage number `first`. */
  textsFrom(first: number, count: number): string[] {
    const rows = this.raw
      .prepare(
        'select title, text from passages join documents on documents.number = document where passages.number >= ? order by passages.number limit ?',
      )
      .all(first, count) as { title: string; text: string }[];
    return rows.map(({ title, text }) => (title === '' ? text : `${title}\n\n${text}`));
  }

  addVector(passage: number, vector: Float32Array): void {
    this.insertVector.run(passage, Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength));
    this.embedded++;
  }

  setting(name: string, value: string): void {
    this.raw.prepare('insert into settings values (?, ?)').run(name, value);
  }

  summary(): BuildSummary {
    return { documents: this.documents, passages: this.passages, embedded: this.embedded };
  }
}

/** Gets the vectors of all passages from the service and stores them. */
async function embed(
  writer: IndexWriter,
  embeddings: Embeddings,
  { onProgress }: BuildOptions,
  signal: AbortSignal,
): Promise<void> {
  let dimensions = 0;
  const step = EMBEDDED_TOGETHER * REQUESTS_AT_A_TIME;
  for (let first = 1; first <= writer.passages; first += step) {
    const starts = Array.from({ length: REQUESTS_AT_A_TIME }, (_, i) => first + i * EMBEDDED_TOGETHER);
    const batches = await Promise.all(
      starts
        .filter((start) => start <= writer.passages)
        .map(async (start) => {
          const texts = writer.textsFrom(start, EMBEDDED_TOGETHER);
          return { start, vectors: await embeddings.vectorsOf(texts, signal) };
        }),
    );
    for (const { start, vectors } of batches) {
      for (const [index, vector] of vectors.entries()) {
        dimensions ||= vector.length;
        if (vector.length !== dimensions) {
          throw new FloeError('setup_failed', 'the embeddings service made vectors of different lengths');
        }
        writer.addVector(start + index, vector);
      }
    }
    onProgress(writer.summary());
  }
  writer.setting('embedding_model', embeddings.model);
  writer.setting('dimensions', String(dimensions));
}
