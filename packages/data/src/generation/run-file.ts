import { createHash, randomUUID } from 'node:crypto';
import { link, open, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { type Clock, canonicalJson, FloeError, isoNow, isRecord, newId, parseAs, parseJson } from '@floe-rl/core';
import { type BadRow, type Row, readAllRows } from '@floe-rl/core/rows';
import { metadataSchema, timestampSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import { syncFolder } from './journal.ts';

const RUN_FILE = 'run.json';

/** The settings that all processes of a run must share. The process that starts the run writes them once. */
const runSchema = z.strictObject({
  version: z.literal(1),
  run: z.string(),
  created_at: timestampSchema,
  data: z.string().describe('path of the data set; the digests of its rows decide, not its path'),
  shards: z.int().min(1),
  template: metadataSchema,
  rows: z.array(z.string()).describe('digest of each row of the data set'),
});
type RunFile = z.infer<typeof runSchema>;

/** The options of a process. They are compared with the run of its directory, so that a run with other options is not continued. */
export type RunInput = Pick<RunFile, 'data' | 'shards' | 'template' | 'rows'>;

/** Number of hexadecimal digits of a row's digest. 64 bits suffice, because a row is compared only with the row of the same number. */
const DIGEST_DIGITS = 16;

/** Returns the digest of a row. A row that is not an object also has a digest, so that the numbers of later rows do not change. */
export function rowDigest(row: Row | BadRow): string {
  const text = 'error' in row ? row.error.message : canonicalJson(row.fields);
  return createHash('sha256').update(text).digest('hex').slice(0, DIGEST_DIGITS);
}

/**
 * Returns the run of a directory. If the directory has no run, starts a run when `clock` is given, and throws `not_found` otherwise. When
 * several processes start the run at the same time, one of them creates it and all get the same run. Throws `conflict`, with the first
 * difference, when the directory belongs to a run with another template, data set or number of shards.
 */
export async function openRun(dir: string, input: RunInput, clock: Clock | null): Promise<RunFile> {
  const path = join(dir, RUN_FILE);
  const known = await readRun(path);
  if (known === null && clock === null) {
    throw new FloeError('not_found', `${dir} has no run to merge: ${path} does not exist`, { dir });
  }
  const run = known ?? (await createRun(dir, path, input, clock as Clock));
  const difference = await differenceOf(run, input);
  if (difference === null) return run;
  throw new FloeError(
    'conflict',
    `${dir} has the run ${run.run} with other input: ${difference}; use another directory, or restore the input of the run`,
    { dir, run: run.run, difference },
  );
}

async function createRun(dir: string, path: string, input: RunInput, clock: Clock): Promise<RunFile> {
  const run: RunFile = { version: 1, run: newId('gen', clock), created_at: isoNow(clock), ...input };
  const own = join(dir, `.${RUN_FILE}.${randomUUID()}`);
  try {
    const file = await open(own, 'wx', 0o600);
    try {
      await file.writeFile(`${JSON.stringify(run)}\n`);
      await file.sync();
    } finally {
      await file.close();
    }
    // Unlike a rename, a link does not replace the file that another process has created meanwhile.
    await link(own, path);
    await syncFolder(dir);
    return run;
  } catch (thrown) {
    const winner = (thrown as NodeJS.ErrnoException).code === 'EEXIST' ? await readRun(path) : null;
    if (winner === null) throw thrown;
    return winner;
  } finally {
    await rm(own, { force: true });
  }
}

async function readRun(path: string): Promise<RunFile | null> {
  const text = await readFile(path, 'utf8').catch((thrown: NodeJS.ErrnoException) => {
    if (thrown.code === 'ENOENT') return null;
    throw thrown;
  });
  return text === null ? null : parseAs(runSchema, parseJson(text), path);
}

async function differenceOf(run: RunFile, input: RunInput): Promise<string | null> {
  if (run.shards !== input.shards) return `it is divided into ${run.shards} shards, not ${input.shards}`;
  const field = differentField(run.template, input.template, '');
  if (field !== null) return `the template's ${field}`;
  if (run.rows.length !== input.rows.length) {
    return `the data set ${run.data} had ${run.rows.length} rows, and ${input.data} has ${input.rows.length}`;
  }
  const changed = run.rows.findIndex((digest, index) => digest !== input.rows[index]);
  if (changed < 0) return null;
  let index = 0;
  for await (const { where } of readAllRows(input.data)) {
    if (index++ === changed) return `the row ${where} differs from that row of ${run.data} at the start of the run`;
  }
  return `row ${changed + 1} of the data set differs`;
}

/** Returns the first field in which two values differ, with both of its values; `null` when the values are equal. */
function differentField(before: unknown, now: unknown, path: string): string | null {
  if (canonicalJson(before ?? null) === canonicalJson(now ?? null)) return null;
  if (isRecord(before) && isRecord(now)) {
    for (const key of new Set([...Object.keys(before), ...Object.keys(now)])) {
      const difference = differentField(before[key], now[key], path === '' ? key : `${path}.${key}`);
      if (difference !== null) return difference;
    }
  }
  return `${path} was ${shortJson(before)} and is ${shortJson(now)}`;
}

/** Number of characters of a value that a message contains. */
const SHOWN_CHARS = 60;

function shortJson(value: unknown): string {
  const text = value === undefined ? 'absent' : JSON.stringify(value);
  return text.length > SHOWN_CHARS ? `${text.slice(0, SHOWN_CHARS)}…` : text;
}
