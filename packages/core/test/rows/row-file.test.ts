import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { folderWith } from '../../../data/test/harbor/task-folder.ts';
import { type Row, readRows } from '../../src/rows/row-file.ts';

async function rowsOf(name: string, content: string): Promise<{ path: string; rows: Row[] }> {
  const path = join(folderWith({ [name]: content }), name);
  const rows: Row[] = [];
  for await (const row of readRows(path)) rows.push(row);
  return { path, rows };
}

describe('a file of rows', () => {
  it('has one row per line, with its number', async () => {
    const { path, rows } = await rowsOf('rows.jsonl', '{"a": 1}\n\n{"a": 2}');
    expect(rows).toEqual([
      { where: `${path}:1`, fields: { a: 1 } },
      { where: `${path}:3`, fields: { a: 2 } },
    ]);
  });

  it('has a JSON list of rows', async () => {
    const { path, rows } = await rowsOf('rows.json', '[{"a": 1}, {"a": 2}]');
    expect(rows[1]).toEqual({ where: `${path}[1]`, fields: { a: 2 } });
  });

  it('may begin with a byte order mark, end its lines with CRLF, and have line separators of Unicode in its texts', async () => {
    const lines = await rowsOf('rows.jsonl', '\uFEFF{"a": "x\u2028y\u2029z\u0085"}\r\n \r\n{"a": 2}\r\n');
    expect(lines.rows).toEqual([
      { where: `${lines.path}:1`, fields: { a: 'x\u2028y\u2029z\u0085' } },
      { where: `${lines.path}:3`, fields: { a: 2 } },
    ]);
    const list = await rowsOf('rows.json', '\uFEFF[{"a": 1}]');
    expect(list.rows).toEqual([{ where: `${list.path}[0]`, fields: { a: 1 } }]);
  });

  it('may have lines that are longer than a chunk that is read at once', async () => {
    const text = 'x'.repeat(300_000);
    const { rows } = await rowsOf('rows.jsonl', `{"a": "${text}"}\n{"a": 2}\n`);
    expect(rows.map(({ fields }) => fields)).toEqual([{ a: text }, { a: 2 }]);
  });

  it('is refused with the row when it is not UTF-8, because other characters would be trained on', async () => {
    const path = join(folderWith({}), 'rows.jsonl');
    await writeFile(path, Buffer.from('{"a": 1}\n{"a": "\xe9"}\n', 'latin1'));
    const read = async (): Promise<void> => {
      for await (const _ of readRows(path));
    };
    await expect(read()).rejects.toMatchObject({
      code: 'schema_violation',
      message: expect.stringMatching(/rows\.jsonl:2: .*UTF-8/),
    });
  });

  it.each([
    ['rows.jsonl', '{"a": 1}\n{', 'rows.jsonl:2: is not JSON'],
    ['rows.jsonl', '[]', 'rows.jsonl:1: is not an object'],
    ['rows.json', '{"a": 1}', 'rows.json: is not a list of rows'],
    ['rows.json', '[1]', 'rows.json[0]: is not an object'],
  ])('%s with %j is refused with the row', async (name, content, message) => {
    await expect(rowsOf(name, content)).rejects.toMatchObject({
      code: 'schema_violation',
      message: expect.stringContaining(message),
    });
  });

  it('is refused when it does not exist, or is Parquet', async () => {
    const read = async (path: string) => {
      for await (const row of readRows(path)) return row;
      return null;
    };
    await expect(read('/absent/rows.jsonl')).rejects.toMatchObject({ code: 'setup_failed' });
    await expect(read('/tmp')).rejects.toMatchObject({ code: 'setup_failed' });
    await expect(read('/absent/rows.json')).rejects.toMatchObject({ code: 'setup_failed' });
    await expect(read('/absent/rows.parquet')).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringContaining('pandas'),
    });
  });
});
