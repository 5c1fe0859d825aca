import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { demoTasks } from '../../src/commands/demo-run.ts';
import { readTaskFile } from '../../src/commands/yaml-file.ts';

describe('readTaskFile', () => {
  let dir: string;
  beforeAll(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-task-file-'));
  });
  afterAll(() => rm(dir, { recursive: true, force: true }));

  const read = async (text: string): Promise<unknown> => {
    const path = join(dir, 'task.yaml');
    await writeFile(path, text);
    return readTaskFile(path);
  };

  it('resolves the paths of files to upload from the folder of the task file, and does not change sandbox paths', async () => {
    const task = await read(`
instruction: fix it
agent: { harness: pi }
runtime:
  prepare:
    - { type: upload_dir, source: repo, target: sub }
    - { type: exec, command: ls }
  eval_prepare:
    - { type: upload_file, source: /abs/file, target: file }
`);
    expect(task).toMatchObject({
      runtime: {
        prepare: [{ type: 'upload_dir', source: join(dir, 'repo'), target: 'sub' }, { type: 'exec' }],
        eval_prepare: [{ source: '/abs/file', target: 'file' }],
      },
    });
  });

  it.each([
    ['invalid YAML', 'instruction: [', 'malformed_json'],
    ['a field that floe does not know', 'instruction: x\nagent: { harness: pi }\nsamples: 4', 'schema_violation'],
    ['an empty file', '', 'schema_violation'],
  ])('refuses %s', async (_, text, code) => {
    await expect(read(text)).rejects.toMatchObject({ code });
  });

  it('names an unknown tag and its line', async () => {
    await expect(read('instruction: fix it\nagent: !shell { harness: pi }')).rejects.toMatchObject({
      code: 'malformed_json',
      message: expect.stringMatching(/task\.yaml .*!shell at line 2/s),
    });
  });

  it('names a missing file in the error', async () => {
    await expect(readTaskFile(join(dir, 'nothing.yaml'))).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringContaining('nothing.yaml'),
    });
  });

  it('accepts every demo task', async () => {
    const { tasks, skipped } = demoTasks('local');
    expect(tasks.length + skipped.length).toBe(4);
    for (const task of tasks) {
      expect(await readTaskFile(task.taskFile)).toMatchObject({ num_samples: 4, agent: { harness: 'pi' } });
    }
  });
});
