import { realpath, stat } from 'node:fs/promises';
import { join, sep } from 'node:path';
import { FloeError, MIB } from '@floe-rl/core';
import { readRows } from '@floe-rl/core/rows';
import { bodyError } from '../field-errors.ts';
import type { RowFields } from './task-template.ts';

/** Maximum size of a file. The server keeps its rows in memory until the stream is stored. */
const MAX_FILE_BYTES = 512 * MIB;

/**
 * Yields the rows of a data set below the server's `dataset_dir`. Throws `schema_violation` with the field `source.path` when the server has
 * no such directory, and when the file is outside of it, too large or unreadable. For a row that is not a JSON object, the error names its
 * line.
 */
export async function* rowsOfFile(directory: string | null, path: string): AsyncGenerator<RowFields> {
  if (directory === null) {
    throw wrongPath(
      'this server reads no files, because it has no `dataset_dir`; send the rows with source.kind "rows"',
    );
  }
  const file = await realpath(join(directory, path)).catch(() => {
    throw wrongPath(`${path} does not exist in the server's dataset_dir`);
  });
  if (!file.startsWith(`${await realpath(directory)}${sep}`))
    throw wrongPath(`${path} is outside the server's dataset_dir`);
  const found = await stat(file);
  if (!found.isFile()) throw wrongPath(`${path} is not a regular file`);
  if (found.size > MAX_FILE_BYTES) {
    throw wrongPath(`${path} has more than ${MAX_FILE_BYTES / MIB} MiB; use several streams, or a generator of rows`);
  }
  try {
    for await (const { fields } of readRows(file)) yield fields;
  } catch (thrown) {
    if (FloeError.is(thrown)) throw wrongPath(thrown.message.replace(file, path));
    throw thrown;
  }
}

function wrongPath(message: string): FloeError {
  return bodyError('source.path', message);
}
