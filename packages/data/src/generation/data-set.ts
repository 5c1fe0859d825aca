import { FloeError } from '@floe-rl/core';
import { readAllRows } from '@floe-rl/core/rows';
import { rowTask, type TaskTemplate } from './row-task.ts';
import { rowDigest } from './run-file.ts';
import type { NumberedRow } from './sampling-run.ts';
import { ownsRow, type Shard } from './shards.ts';

/** Facts about the rows of a data set at the start of a command. */
export type CheckedRows = {
  /** Digest of each row. */
  readonly digests: string[];
  /** For each row that does not fit the template, the reason, by the row's number. */
  readonly invalid: ReadonlyMap<number, string>;
};

/** Reads the data set once. Throws `bad_request` when it has no rows. */
export async function checkRows(data: string, template: TaskTemplate): Promise<CheckedRows> {
  const digests: string[] = [];
  const invalid = new Map<number, string>();
  for await (const row of readAllRows(data)) {
    try {
      if ('error' in row) throw row.error;
      rowTask(template, row);
    } catch (thrown) {
      if (!FloeError.is(thrown)) throw thrown;
      invalid.set(digests.length, thrown.message);
    }
    digests.push(rowDigest(row));
  }
  if (digests.length === 0) throw new FloeError('bad_request', `${data} has no rows`);
  return { digests, invalid };
}

/**
 * Reads the data set a second time and yields the rows of a shard that fit the template, up to the limit. Throws `conflict` before it yields a
 * row that was changed meanwhile.
 */
export async function* rowsOf(
  { data, shard, limit }: { readonly data: string; readonly shard: Shard; readonly limit: number },
  { digests, invalid }: CheckedRows,
): AsyncGenerator<NumberedRow> {
  const changed = (where: string): FloeError =>
    new FloeError(
      'conflict',
      `${where} was changed while the command ran; restore the data set and run the command once more`,
    );
  let number = 0;
  for await (const row of readAllRows(data)) {
    if (number >= limit) return;
    if (rowDigest(row) !== digests[number]) throw changed(row.where);
    if (!('error' in row) && ownsRow(shard, number) && !invalid.has(number)) yield { number, row };
    number++;
  }
  if (number < Math.min(limit, digests.length)) throw changed(data);
}
