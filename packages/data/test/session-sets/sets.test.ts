import { mkdtemp, readdir, readFile, rm, stat, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Trace } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { madeUpSessions } from '../../../../verify/datasets/sessions.ts';
import { rowText, type SetRow } from '../../src/session-sets/set-row.ts';
import { writeSet } from '../../src/session-sets/write-set.ts';
import { traceOf } from '../generation/results.ts';
import { readAll, setRow, write } from './sets.ts';

const ROWS = [...madeUpSessions({ seed: 1, tasks: 6, samples: 8, tokens: 100 })];

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-sets-'));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

const set = (): string => join(dir, 'set');

async function linesOf(...files: string[]): Promise<Record<string, unknown>[]> {
  const texts = await Promise.all(files.map((file) => readFile(join(set(), 'data', file), 'utf8')));
  return texts.flatMap((text) => text.trim().split('\n')).map((line) => JSON.parse(line));
}

/** Returns four sessions of each of two tasks. The reward of a session is the number of its sample. */
function groups(): SetRow[] {
  return ['a', 'b'].flatMap((task) =>
    [0, 1, 2, 3].map((sample) =>
      setRow({
        session_id: `${task}-${sample}`,
        task_id: task,
        sample_index: sample,
        reward: sample,
        metadata: { repo: task },
      }),
    ),
  );
}

describe.each(['jsonl', 'parquet'] as const)('a set of sessions as %s', (encoding) => {
  it('is read again without a difference', async () => {
    await write(set(), ROWS, { encoding });
    expect((await readAll(set())).map(rowText)).toEqual(ROWS.map(rowText));
    expect(await readdir(dir)).toEqual(['set']);
  });

  it('has several files and splits, which are read again', async () => {
    const split = 'train=0.5,test=0.5';
    const { files, splits } = await write(set(), ROWS, { encoding, split, shardBytes: 20_000 });
    expect(files.filter(({ path }) => path.startsWith('data/train-')).length).toBeGreaterThan(1);
    expect(Object.keys(splits).sort()).toEqual(['test', 'train']);
    const texts = (rows: readonly SetRow[]): string[] => rows.map(rowText).sort();
    expect(texts(await readAll(set()))).toEqual(texts(ROWS));
  });

  it('may have no session', async () => {
    expect(await write(set(), [], { encoding })).toMatchObject({ sessions: 0, rows: 0, files: [] });
    expect(await readAll(set())).toEqual([]);
  });

  it('has each image once', async () => {
    const { files } = await write(set(), ROWS, { encoding });
    const images = files.filter(({ path }) => path.startsWith('images/'));
    expect(images).toHaveLength(1);
    expect(ROWS.filter(({ trajectory }) => Object.keys(trajectory?.images ?? {}).length > 0).length).toBeGreaterThan(5);
  });
});

describe('what is not a complete set', () => {
  it('remains of no failed export', async () => {
    async function* failing(): AsyncGenerator<SetRow> {
      yield* ROWS;
      throw new Error('the server has ended');
    }
    const { skipped } = { skipped: () => ({}) };
    const options = {
      dir: set(),
      split: null,
      splitKey: 'task_id',
      conditions: [],
      by: 'outcome',
      minMargin: 0,
      skipped,
    };
    for (const encoding of ['jsonl', 'parquet'] as const) {
      const writing = writeSet(failing(), { ...options, format: 'sessions', encoding, shardBytes: 10_000 });
      await expect(writing).rejects.toThrow('the server has ended');
      expect(await readdir(dir)).toEqual([]);
    }
  });

  it('is refused when a file is missing or was changed', async () => {
    await write(set(), groups());
    const file = join(set(), 'data', 'train-00000-of-00001.jsonl');
    const { size } = await stat(file);
    const content = await readFile(file, 'utf8');
    await writeFile(file, content.replace('"reward":1', '"reward":2'));
    expect((await stat(file)).size).toBe(size);
    await expect(readAll(set())).rejects.toMatchObject({
      code: 'corrupt_record',
      details: { file: expect.any(String) },
    });
    await rm(file);
    await expect(readAll(set())).rejects.toThrow('a file of the set is missing');
  });

  const damages: Readonly<Record<string, (file: string) => Promise<unknown>>> = {
    'without its manifest': () => rm(join(set(), 'floe.json')),
    'with a missing file': rm,
    'with a file that is cut off': (file) => truncate(file, 1_000),
    'with a changed byte': async (file) => {
      const bytes = await readFile(file);
      bytes[bytes.length >> 1] = (bytes[bytes.length >> 1] ?? 0) ^ 1;
      await writeFile(file, bytes);
    },
    'without an image': async () => rm(join(set(), 'images', (await readdir(join(set(), 'images')))[0] ?? '')),
  };

  it.each(Object.keys(damages).flatMap((damage) => [['jsonl', damage] as const, ['parquet', damage] as const]))(
    'is refused as %s %s',
    async (encoding, damage) => {
      await write(set(), ROWS, { encoding });
      const file = (await readdir(join(set(), 'data'))).sort()[0] ?? '';
      await damages[damage]?.(join(set(), 'data', file));
      await expect(readAll(set())).rejects.toMatchObject({ code: 'corrupt_record' });
    },
  );

  it('is refused in another format', async () => {
    await write(set(), groups(), { format: 'sft' });
    await expect(readAll(set())).rejects.toMatchObject({ code: 'unsupported' });
  });
});

describe('the rows of a set', () => {
  it('are refused in Parquet when a trace has a field without a column', async () => {
    const trace = { ...traceOf(), novelty: 1 } as Trace;
    const writing = write(set(), [setRow({}, [trace])], { encoding: 'parquet' });
    await expect(writing).rejects.toThrow('no column for the field novelty');
  });

  it('must have the sessions of a task after each other', async () => {
    const [first, second] = groups();
    const rows = [first, setRow({ task_id: 'c' }), second].filter((row) => row !== undefined);
    await expect(write(set(), rows)).rejects.toThrow('the sessions of the task a do not follow each other');
  });

  it('are in Parquet only as whole sessions', async () => {
    await expect(write(set(), groups(), { format: 'sft', encoding: 'parquet' })).rejects.toThrow('holds sessions only');
  });
});

describe('the splits of a set', () => {
  it('depend on the task alone, so that more sessions move none', async () => {
    const tasks = Array.from({ length: 200 }, (_, at) => setRow({ task_id: `task-${at}`, session_id: `s-${at}` }));
    const split = 'train=0.8,test=0.2';
    const { splits } = await write(set(), tasks, { split });
    expect(splits.train).toBeGreaterThan(140);
    expect(splits.test).toBeGreaterThan(20);
    const before = new Set((await linesOf('test-00000-of-00001.jsonl')).map(({ task_id }) => task_id));
    await rm(set(), { recursive: true });
    await write(set(), tasks.slice(0, 50), { split });
    const after = (await linesOf('test-00000-of-00001.jsonl')).map(({ task_id }) => task_id);
    expect(after.every((task) => before.has(task))).toBe(true);
    expect(after).toHaveLength([...before].filter((task) => Number(String(task).slice(5)) < 50).length);
  });

  it('are named by a field, which every session must have', async () => {
    const { splits } = await write(set(), groups(), { split: 'metadata.repo' });
    expect(splits).toEqual({ a: 4, b: 4 });
    const options = { split: 'metadata.part' };
    await expect(write(join(dir, 'other'), groups(), options)).rejects.toThrow('session a-0: metadata.part is missing');
    expect(await readdir(dir)).toEqual(['set']);
  });
});

describe('accepted sessions', () => {
  it('are counted by a field', async () => {
    const { acceptance } = await write(set(), [...groups(), setRow({ task_id: 'c', reward: null })]);
    expect(acceptance.groups).toEqual([
      expect.objectContaining({ value: 'a', tasks: 1, tasks_accepted: 1, sessions: 4, accepted: 3, rate: 0.75 }),
      expect.objectContaining({ value: 'b', sessions: 4, accepted: 3, sampled_tokens: 8 }),
      expect.objectContaining({ value: null, sessions: 1, accepted: 0, rate: 0 }),
    ]);
    expect(acceptance.total).toMatchObject({ tasks: 3, sessions: 9, accepted: 6, rate: 0.6667 });
    expect(await readFile(join(set(), 'README.md'), 'utf8')).toContain('| a | 1 | 4 | 3 | 75.0 % | 8 |');
  });

  it('are in no markup of the card', async () => {
    await write(set(), [setRow({ metadata: { repo: '<b>|[x](http://x)\n# y' } })]);
    expect(await readFile(join(set(), 'README.md'), 'utf8')).toContain('| \\<b\\>\\|\\[x\\](http://x) \\# y |');
  });
});

describe('chat formats', () => {
  it('have the messages of accepted sessions with the weight of their loss', async () => {
    await write(set(), groups(), { format: 'sft' });
    const records = await linesOf('train-00000-of-00001.jsonl');
    expect(records.map(({ session_id }) => session_id)).toEqual(['a-1', 'a-2', 'a-3', 'b-1', 'b-2', 'b-3']);
    expect(records[0]?.messages).toEqual([
      { role: 'user', content: 'Solve it.' },
      { role: 'assistant', content: 'Done.', weight: 1 },
    ]);
  });

  it('have no weight where the trained replies are unknown', async () => {
    const reply = { role: 'assistant', content: 'Once more.' } as const;
    const trace = traceOf({ response_messages: [reply, { role: 'user', content: 'No.' }, reply] });
    await write(set(), [setRow({}, [trace])], { format: 'sft' });
    const [record] = await linesOf('train-00000-of-00001.jsonl');
    expect(record?.messages).toContainEqual({ ...reply, weight: 0 });
    expect(JSON.stringify(record?.messages)).not.toContain('"weight":1');
  });

  it('pair the best accepted session with the worst, from a margin on', async () => {
    const manifest = await write(set(), groups(), { format: 'preference', minMargin: 2 });
    expect(manifest.rows).toBe(2);
    expect(await linesOf('train-00000-of-00001.jsonl')).toMatchObject([
      { chosen_session_id: 'a-3', rejected_session_id: 'a-0', margin: 3, same_prompt: true },
      { chosen_session_id: 'b-3', rejected_session_id: 'b-0', margin: 3 },
    ]);
  });

  it('have prompt, response and label for a verifier', async () => {
    await write(set(), groups().slice(0, 2), { format: 'verifier' });
    expect(await linesOf('train-00000-of-00001.jsonl')).toMatchObject([
      { prompt: '[user]\nSolve it.', response: '[assistant]\nDone.', reward: 0, label: 0 },
      { prompt: '[user]\nSolve it.', reward: 1, label: 1 },
    ]);
  });

  it('write thinking and tool calls into the text of ShareGPT', async () => {
    const call = { id: 'c', type: 'function', function: { name: 'run', arguments: '{"a":1}' } } as const;
    const trace = traceOf({
      response_messages: [
        { role: 'assistant', content: 'So.', reasoning_content: 'Hm.', tool_calls: [call] },
        { role: 'tool', tool_call_id: 'c', content: '1' },
      ],
    });
    await write(set(), [setRow({}, [trace])], { format: 'sharegpt' });
    expect((await linesOf('train-00000-of-00001.jsonl'))[0]?.conversations).toEqual([
      { from: 'human', value: 'Solve it.' },
      {
        from: 'gpt',
        value: '<think>\nHm.\n</think>\nSo.\n<tool_call>\n{"name": "run", "arguments": {"a":1}}\n</tool_call>',
      },
      { from: 'tool', value: '<tool_response>\n1\n</tool_response>' },
    ]);
  });

  it('have no half of a surrogate pair', async () => {
    const trace = traceOf({ response_messages: [{ role: 'assistant', content: 'a\ud800b \\ud800' }] });
    await write(set(), [setRow({}, [trace])], { format: 'sft' });
    const text = await readFile(join(set(), 'data', 'train-00000-of-00001.jsonl'), 'utf8');
    expect(text).toContain('a\ufffdb \\\\ud800');
  });
});
