import { mkdir, mkdtemp, rm, symlink, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { rowsOfFile } from '../../../src/rollout/batches/row-files.ts';

let root: string;
let directory: string;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'floe-rows-'));
  directory = join(root, 'data');
  await mkdir(join(directory, 'folder.jsonl'), { recursive: true });
});
afterEach(() => rm(root, { recursive: true, force: true }));

async function rowsOf(path: string): Promise<unknown[]> {
  const rows: unknown[] = [];
  for await (const row of rowsOfFile(directory, path)) rows.push(row);
  return rows;
}

describe('a file of rows below dataset_dir', () => {
  it('is read, also through a link that stays below it', async () => {
    await writeFile(join(directory, 'a.jsonl'), '{"n": 1}\n{"n": 2}\n');
    await symlink('a.jsonl', join(directory, 'link.jsonl'));
    expect(await rowsOf('link.jsonl')).toEqual([{ n: 1 }, { n: 2 }]);
  });

  it('is refused with source.path when it is outside, missing, damaged, too large, or no file', async () => {
    await writeFile(join(root, 'outside.jsonl'), '{"n": 1}\n');
    await symlink(join(root, 'outside.jsonl'), join(directory, 'link.jsonl'));
    await writeFile(join(directory, 'broken.jsonl'), '{"n": 1}\n{"n": ');
    await writeFile(join(directory, 'large.jsonl'), '');
    await truncate(join(directory, 'large.jsonl'), 600 * 2 ** 20);
    const cases: [string, string][] = [
      ['../outside.jsonl', "outside the server's dataset_dir"],
      ['link.jsonl', "outside the server's dataset_dir"],
      ['missing.jsonl', 'does not exist'],
      ['broken.jsonl', 'broken.jsonl:2: is not JSON'],
      ['large.jsonl', 'more than 512 MiB'],
      ['folder.jsonl', 'is not a regular file'],
    ];
    for (const [path, message] of cases) {
      await expect(rowsOf(path), path).rejects.toMatchObject({
        code: 'schema_violation',
        message: expect.stringContaining(message),
        details: { issues: [{ path: 'source.path' }] },
      });
    }
  });

  it('is refused where the server has no dataset_dir', async () => {
    await expect(rowsOfFile(null, 'a.jsonl').next()).rejects.toMatchObject({
      message: expect.stringContaining('no `dataset_dir`'),
    });
  });
});
