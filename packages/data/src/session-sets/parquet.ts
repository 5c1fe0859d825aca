import { FloeError } from '@floe-rl/core';
import { type Table, tableFromIPC, type Vector } from 'apache-arrow';
import { type Cell, type Columns, encodeTable, type TableRow } from './columns.ts';

type Library = typeof import('parquet-wasm');

/** Loads the library on first use, because it is a WebAssembly module of 5 MB. */
async function library(): Promise<Library> {
  return import('parquet-wasm');
}

/** Encodes rows as a Parquet file with one row group, compressed with Snappy. Throws as {@link encodeTable} does. */
export async function encodeParquet(columns: Columns, rows: readonly TableRow[]): Promise<Uint8Array> {
  const { Compression, EnabledStatistics, Table, WriterPropertiesBuilder, writeParquet } = await library();
  // Dictionaries and statistics of ids and log-probabilities take more time than everything else, and do not make the file smaller.
  let properties = new WriterPropertiesBuilder()
    .setCompression(Compression.SNAPPY)
    .setDictionaryEnabled(false)
    .setStatisticsEnabled(EnabledStatistics.None);
  for (const [name, kind] of Object.entries(columns)) {
    if (kind === 'mask') properties = properties.setColumnDictionaryEnabled(`${name}.list.element`, true);
  }
  return writeParquet(Table.fromIPCStream(encodeTable(columns, rows)), properties.build());
}

/**
 * Yields the rows of a Parquet file. Lists become lists of numbers. `name` is the name of the file, for messages. Throws `corrupt_record` for
 * bytes that are not Parquet, and `schema_violation` for a column that is not in `columns`. A set of an earlier version may lack columns.
 */
export async function* parquetRows(name: string, bytes: Uint8Array, columns: Columns): AsyncGenerator<TableRow> {
  const { readParquet } = await library();
  let table: Table;
  try {
    table = tableFromIPC(readParquet(bytes).intoIPCStream());
  } catch (cause) {
    throw new FloeError(
      'corrupt_record',
      `${name} is not a readable Parquet file: ${String(cause)}`,
      { file: name },
      cause,
    );
  }
  const names = table.schema.fields.map(({ name: column }) => column);
  const unknown = names.find((column) => !Object.hasOwn(columns, column));
  if (unknown !== undefined) {
    throw new FloeError('schema_violation', `${name} has the unknown column ${unknown}`, {
      file: name,
      column: unknown,
    });
  }
  for (const batch of table.batches) {
    const vectors = names.map((key) => [key, batch.getChild(key)] as const);
    for (let row = 0; row < batch.numRows; row++) {
      yield Object.fromEntries(vectors.map(([key, vector]) => [key, cellOf(vector, row)]));
    }
  }
}

function cellOf(vector: Vector | null, row: number): Cell {
  const value: unknown = vector?.get(row) ?? null;
  if (typeof value !== 'object' || value === null) return value as Cell;
  return Array.from((value as Vector).toArray() as ArrayLike<number>);
}
