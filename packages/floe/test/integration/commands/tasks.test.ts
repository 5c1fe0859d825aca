import { join } from 'node:path';
import { type TaskRequest, taskRequestSchema } from '@floe-rl/core/schema';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startTestStack, type TestStack } from '../../../../../test/integration/stack.ts';
import { R2E_GYM_ROW, SWE_BENCH_ROW } from '../../../../data/test/datasets/rows.ts';
import { folderWith, HARBOR_FILES } from '../../../../data/test/harbor/task-folder.ts';
import { CLI, type Exit, run } from '../../commands/machine.ts';

describe('floe tasks from-rows', () => {
  let stack: TestStack;
  beforeAll(async () => {
    stack = await startTestStack();
  });
  afterAll(() => stack.close());

  const fromRows = (...words: string[]): Promise<Exit> => {
    const env = { FLOE_URL: stack.serverUrl, FLOE_HOME: join(stack.dir, 'home') };
    return run([process.execPath, CLI, 'tasks', 'from-rows', ...words], env);
  };
  const fileOf = (...rows: readonly object[]): string =>
    join(folderWith({ 'rows.jsonl': rows.map((row) => `${JSON.stringify(row)}\n`).join('') }), 'rows.jsonl');
  const tasksIn = ({ output }: Exit): TaskRequest[] =>
    output
      .trim()
      .split('\n')
      .map((line) => taskRequestSchema.parse(JSON.parse(line)));

  it('prints a task for each row', async () => {
    const other = { ...SWE_BENCH_ROW, instance_id: 'django__django-2' };
    const path = fileOf(SWE_BENCH_ROW, other);
    const printed = tasksIn(await fromRows('--dataset', 'swebench', path, '-n', '4', '--max-turns', '30'));
    expect(printed.map(({ duration_key }) => duration_key)).toEqual(['django__django-11099', 'django__django-2']);
    expect(printed[0]).toMatchObject({ num_samples: 4, agent: { harness: 'pi', max_turns: 30 } });
    const one = tasksIn(await fromRows('--dataset', 'swebench', path, '--instance', 'django__django-2'));
    expect(one).toHaveLength(1);
    expect(tasksIn(await fromRows('--dataset', 'swebench', path, '--limit', '1'))).toHaveLength(1);
  });

  it('prints a task for each folder of Harbor tasks', async () => {
    const words = [
      '--dataset',
      'harbor',
      folderWith(HARBOR_FILES),
      '--backend',
      'bubblewrap',
      '--image',
      '/images/base',
    ];
    expect(tasksIn(await fromRows(...words))[0]).toMatchObject({
      runtime: { image: '/images/base' },
      evaluator: { strategy: 'harbor' },
    });
  });

  it('submits the tasks', async () => {
    const { code, output } = await fromRows('--dataset', 'r2e-gym', fileOf(R2E_GYM_ROW), '--submit');
    expect(output).toMatch(/^task \S+: 1 sessions, orange3-2d9617bd\n$/);
    expect(code).toBe(0);
  });

  it.each<[string, object, readonly string[], string]>([
    ['a field is missing', { ...SWE_BENCH_ROW, repo: undefined }, [], 'rows.jsonl:1: repo: is missing'],
    [
      'the evaluator cannot grade the row',
      { ...SWE_BENCH_ROW, FAIL_TO_PASS: '[' },
      [],
      'rows.jsonl:1: FAIL_TO_PASS: is a string that is not JSON',
    ],
    ['no row is selected', SWE_BENCH_ROW, ['--instance', 'x'], 'has no row that the options select'],
    [
      'the template lacks the issue',
      SWE_BENCH_ROW,
      ['--template', '/dev/null'],
      '/dev/null has no {problem_statement}',
    ],
  ])('is refused when %s', async (_case, row, words, message) => {
    const { code, output } = await fromRows('--dataset', 'swebench', fileOf(row), ...words);
    expect(output).toContain(message);
    expect(code).toBe(2);
  });

  it('is refused for a data set that floe does not know', async () => {
    const { code, output } = await fromRows('--dataset', 'imagenet', 'rows.jsonl');
    expect(output).toContain('Allowed choices are swebench, swe-gym, r2e-gym, skyrl-v0, harbor, terminal-bench');
    expect(code).toBe(1);
  });
});
