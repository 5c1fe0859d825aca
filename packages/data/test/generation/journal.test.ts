import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Journal, type JournalRecord, readJournal, readResult } from '../../src/generation/journal.ts';
import { resultOf } from './results.ts';

const HEADER = { kind: 'run', run: 'gen_1', shard: '1/1' } as const;

describe('Journal', () => {
  let dir: string;
  let path: string;
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-journal-'));
    path = join(dir, 'journal.jsonl');
  });
  afterEach(() => rm(dir, { recursive: true }));

  const entry = (row: number): JournalRecord => ({
    kind: 'result',
    row,
    sample: 0,
    retry: 0,
    result: resultOf({ session_id: `ses-${row}`, metadata: { text: 'ü\u2028"\n' } }),
  });

  async function filled(count: number): Promise<void> {
    const journal = await Journal.open(path, HEADER, () => {});
    for (let row = 0; row < count; row++) await journal.append(entry(row));
    await journal.close();
  }

  async function reopened(): Promise<(JournalRecord | null)[]> {
    const records: (JournalRecord | null)[] = [];
    const journal = await Journal.open(path, HEADER, ({ record }) => records.push(record));
    await journal.close();
    return records;
  }

  it('returns its records in order, each also by its location', async () => {
    await filled(3);
    expect(await reopened()).toEqual([entry(0), entry(1), entry(2)]);
    for await (const { record, location } of readJournal(path)) {
      if (record?.kind === 'result') expect(await readResult(location)).toEqual(record.result);
    }
  });

  it('is one JSON object per line', async () => {
    await filled(2);
    const lines = (await readFile(path, 'utf8')).trimEnd().split('\n');
    expect(lines.map((line) => JSON.parse(line).record)).toEqual([HEADER, entry(0), entry(1)]);
  });

  it('keeps all complete lines and accepts new ones, wherever a kill cut it off', async () => {
    await filled(2);
    const whole = await readFile(path);
    const ends = [...whole.entries()].filter(([, byte]) => byte === 0x0a).map(([at]) => at + 1);
    for (let bytes = 0; bytes <= whole.length; bytes += 7) {
      await writeFile(path, whole.subarray(0, bytes));
      const complete = Math.max(0, ends.filter((end) => end <= bytes).length - 1);
      expect(await reopened()).toEqual([entry(0), entry(1)].slice(0, complete));
      const journal = await Journal.open(path, HEADER, () => {});
      const location = await journal.append(entry(9));
      await journal.close();
      expect(await readResult(location)).toMatchObject({ session_id: 'ses-9' });
      expect(await reopened()).toHaveLength(complete + 1);
    }
  });

  it('reports a line in which a byte changed as damaged, and returns the others', async () => {
    await filled(3);
    const content = await readFile(path);
    const at = content.indexOf('ses-1') + 4;
    content[at] = 0x37;
    await writeFile(path, content);
    expect(await reopened()).toEqual([entry(0), null, entry(2)]);
  });

  it.each([
    ['another run', { run: 'gen_2', shard: '1/1' }, 'belongs to run gen_1, shard 1/1, not to run gen_2, shard 1/1'],
    ['another shard', { run: 'gen_1', shard: '2/2' }, 'not to run gen_1, shard 2/2'],
  ])('refuses the journal of %s', async (_, header, message) => {
    await filled(1);
    await expect(Journal.open(path, { kind: 'run', ...header }, () => {})).rejects.toMatchObject({
      code: 'conflict',
      message: expect.stringContaining(message),
    });
  });

  it('refuses a file that is no journal, and leaves it as it is', async () => {
    await writeFile(path, 'hello\nworld');
    await expect(Journal.open(path, HEADER, () => {})).rejects.toMatchObject({ code: 'conflict' });
    expect(await readFile(path, 'utf8')).toBe('hello\nworld');
  });

  it('reads lines that are longer than what is read at once', async () => {
    const journal = await Journal.open(path, HEADER, () => {});
    const long = { ...entry(0), result: resultOf({ metadata: { text: 'x'.repeat(3_000_000) } }) } as JournalRecord;
    await journal.append(long);
    await journal.append(entry(1));
    await journal.close();
    expect(await reopened()).toEqual([long, entry(1)]);
  });
});
