import { access } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeError } from '@floe-rl/core';
import type { Condition } from './acceptance-conditions.ts';
import { checkHeader, type JournalLine, type JournalRecord, readJournal } from './journal.ts';
import { journaledSample, type SampleIndex } from './samples.ts';

/** One of the parts into which the rows of a run are divided among processes. `index` counts from 0. */
export type Shard = { readonly index: number; readonly count: number };

/** The largest number of shards, so that a mistyped number does not make thousands of journals. */
const MAX_SHARDS = 1000;

/** Parses `1/4`, the first of four shards. Throws `bad_request` for any other text. */
export function parseShard(text: string): Shard {
  const [, number = '', total = ''] = /^([1-9]\d*)\/([1-9]\d*)$/.exec(text) ?? [];
  const shard = { index: Number(number) - 1, count: Number(total) };
  if (number !== '' && shard.index < shard.count && shard.count <= MAX_SHARDS) return shard;
  throw new FloeError('bad_request', `--shard ${text}: write the number of the shard and of all shards: 1/4 to 4/4`);
}

/** Whether a row belongs to a shard. Consecutive rows belong to different shards, because neighbouring rows often take equally long. */
export function ownsRow({ index, count }: Shard, row: number): boolean {
  return row % count === index;
}

export function shardName({ index, count }: Shard): string {
  return `${index + 1}/${count}`;
}

/** Returns the name of a file of one shard, such as `journal.jsonl`, or `journal-1-of-4.jsonl` when there are several shards. */
export function shardFile({ index, count }: Shard, name: string, extension: string): string {
  return count === 1 ? `${name}.${extension}` : `${name}-${index + 1}-of-${count}.${extension}`;
}

/** Returns the first line of the journal of a shard. */
export function journalHeader(run: string, shard: Shard): Extract<JournalRecord, { kind: 'run' }> {
  return { kind: 'run', run, shard: shardName(shard) };
}

/** Adds a line of a journal to the index. `onDamage` gets a line that fails its checksum. The sample of this line counts as not generated. */
export function addLine(
  index: SampleIndex,
  { record, location, number }: JournalLine,
  conditions: readonly Condition[],
  onDamage: (place: string) => void,
): void {
  if (record === null) onDamage(`${location.path}:${number}`);
  else if (record.kind === 'refused') index.refuse(record.row, record.message);
  else if (record.kind === 'result') index.add(journaledSample(record, record.result, conditions, location));
}

/** Reads the journals of all shards of a run into the index. Shards that have not started have no journal. */
export async function readShards(
  dir: string,
  run: string,
  count: number,
  index: SampleIndex,
  conditions: readonly Condition[],
  onDamage: (place: string) => void,
): Promise<void> {
  for (let number = 0; number < count; number++) {
    const shard = { index: number, count };
    const path = join(dir, shardFile(shard, 'journal', 'jsonl'));
    if (!(await exists(path))) continue;
    for await (const line of readJournal(path)) {
      if (line.number === 1) checkHeader(line, journalHeader(run, shard));
      else addLine(index, line, conditions, onDamage);
    }
  }
}

async function exists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  );
}
