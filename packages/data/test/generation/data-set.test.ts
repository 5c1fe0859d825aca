import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { checkRows, rowsOf } from '../../src/generation/data-set.ts';
import { folderWith } from '../harbor/task-folder.ts';

const TEMPLATE = { instruction: '{{row.q}}', agent: { harness: 'pi' } };
const ALL = { shard: { index: 0, count: 1 }, limit: Number.POSITIVE_INFINITY };

async function numbersOf(
  data: string,
  checked: Awaited<ReturnType<typeof checkRows>>,
  limit?: number,
): Promise<number[]> {
  const numbers: number[] = [];
  for await (const { number } of rowsOf({ ...ALL, data, ...(limit === undefined ? {} : { limit }) }, checked))
    numbers.push(number);
  return numbers;
}

describe('the data set of a run', () => {
  it('yields the rows that fit, with their numbers', async () => {
    const data = join(folderWith({ 'rows.jsonl': '{"q": "a"}\n{"x": 1}\n{"q": \n{"q": "b"}\n' }), 'rows.jsonl');
    const checked = await checkRows(data, TEMPLATE);
    expect([...checked.invalid.keys()]).toEqual([1, 2]);
    expect(await numbersOf(data, checked)).toEqual([0, 3]);
    expect(await numbersOf(data, checked, 2)).toEqual([0]);
  });

  it.each([
    ['a row was changed', '{"q": "a"}\n{"q": "other"}\n', 'rows.jsonl:2'],
    ['a row was removed', '{"q": "a"}\n', 'rows.jsonl'],
    ['a row was added', '{"q": "a"}\n{"q": "b"}\n{"q": "c"}\n', 'rows.jsonl:3'],
  ])('is refused when %s after the command began', async (_, content, where) => {
    const data = join(folderWith({ 'rows.jsonl': '{"q": "a"}\n{"q": "b"}\n' }), 'rows.jsonl');
    const checked = await checkRows(data, TEMPLATE);
    await writeFile(data, content);
    await expect(numbersOf(data, checked)).rejects.toMatchObject({
      code: 'conflict',
      message: expect.stringContaining(`${where} was changed`),
    });
  });
});
