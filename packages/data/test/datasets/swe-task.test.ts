import { evaluatorRegistry } from '@floe-rl/evaluators';
import { describe, expect, it } from 'vitest';
import { type SweDataset, type SweTaskOptions, sweTask } from '../../src/datasets/swe-task.ts';
import { R2E_GYM_ROW, SWE_BENCH_ROW, SWE_GYM_ROW } from './rows.ts';

const OPTIONS: SweTaskOptions = {
  agent: { harness: 'pi' },
  backend: 'docker',
  architecture: 'x86_64',
  imageNamespace: null,
  template: null,
  ignoredFields: [],
};

const task = (dataset: SweDataset, fields: Record<string, unknown>, options: Partial<SweTaskOptions> = {}) =>
  sweTask(dataset, { where: 'rows.jsonl:7', fields }, { ...OPTIONS, ...options });

describe('the task of a row', () => {
  it.each<[SweDataset, Record<string, unknown>, string]>([
    ['swebench', SWE_BENCH_ROW, 'swebench/sweb.eval.x86_64.django_1776_django-11099:latest'],
    ['swe-gym', SWE_GYM_ROW, 'xingyaoww/sweb.eval.x86_64.getmoto_s_moto-7365'],
    ['r2e-gym', R2E_GYM_ROW, 'namanjain12/orange3_final:2d9617bd'],
    ['skyrl-v0', SWE_GYM_ROW, 'xingyaoww/sweb.eval.x86_64.getmoto_s_moto-7365'],
    [
      'skyrl-v0',
      { data_source: 'SWE-Gym', instance: JSON.stringify(SWE_GYM_ROW) },
      'xingyaoww/sweb.eval.x86_64.getmoto_s_moto-7365',
    ],
    ['skyrl-v0', { data_source: 'r2e-gym', prompt: [], instance: R2E_GYM_ROW }, 'namanjain12/orange3_final:2d9617bd'],
    [
      'skyrl-v0',
      { data_source: 'SWE-bench_Verified', instance: SWE_BENCH_ROW },
      'swebench/sweb.eval.x86_64.django_1776_django-11099:latest',
    ],
  ])('of %s has the published image and a config that the evaluator accepts', (dataset, fields, image) => {
    const made = task(dataset, fields);
    expect(made.runtime).toMatchObject({ backend: 'docker', image, workdir: '/testbed', eval_prepare: [] });
    expect(made.evaluator?.strategy).toBe('swebench');
    expect(() => made.evaluator !== null && evaluatorRegistry().check(made.evaluator)).not.toThrow();
  });

  it('has the issue as instruction, and no solution anywhere', () => {
    const made = task('swebench', { ...SWE_BENCH_ROW, patch: 'THE SOLUTION', hints_text: 'A HINT' });
    expect(made.instruction).toContain('The repository django/django is in /testbed');
    expect(made.instruction).toContain(SWE_BENCH_ROW.problem_statement);
    expect(JSON.stringify(made)).not.toMatch(/SOLUTION|HINT/);
    expect(made.metadata).toEqual({ dataset: 'swebench', instance_id: 'django__django-11099', repo: 'django/django' });
  });

  it('has the text of a template, in which special patterns of an issue stay', () => {
    const row = { ...SWE_BENCH_ROW, problem_statement: 'costs $& and {repo}' };
    const made = task('swebench', row, { template: '{repo}: {problem_statement}' });
    expect(made.instruction).toBe('django/django: costs $& and {repo}');
  });

  it('has no git history after HEAD, and no tests of R2E-Gym', () => {
    expect(task('swebench', SWE_BENCH_ROW).runtime?.prepare).toEqual([{ type: 'prune_git_history', repo: '.' }]);
    const r2e = task('r2e-gym', R2E_GYM_ROW);
    expect(r2e.runtime?.prepare[1]).toMatchObject({ type: 'exec', command: expect.stringContaining('/r2e_tests') });
    expect(r2e.evaluator?.config.exclude_patterns).toEqual(['run_tests.sh', 'r2e_tests']);
  });

  it('has images of another architecture or registry', () => {
    const arm = task('swebench', SWE_BENCH_ROW, { architecture: 'arm64', imageNamespace: 'registry:5000/swe' });
    expect(arm.runtime?.image).toBe('registry:5000/swe/sweb.eval.arm64.django_1776_django-11099:latest');
    expect(task('swe-gym', SWE_GYM_ROW, { imageNamespace: 'mine' }).runtime?.image).toBe(
      'mine/sweb.eval.x86_64.getmoto_s_moto-7365',
    );
    expect(task('r2e-gym', R2E_GYM_ROW, { imageNamespace: 'mine' }).runtime?.image).toBe('mine/orange3_final:2d9617bd');
  });

  it.each<[SweDataset, Record<string, unknown>, string]>([
    ['swebench', { ...SWE_BENCH_ROW, test_patch: undefined }, 'test_patch: is missing'],
    ['swebench', { ...SWE_BENCH_ROW, instance_id: 5 }, 'instance_id: Invalid input: expected string, received number'],
    [
      'swebench',
      { ...SWE_BENCH_ROW, surprise: 1 },
      'surprise: is no field of this data set; --ignore-fields surprise accepts it',
    ],
    ['r2e-gym', SWE_BENCH_ROW, 'repo_name: is missing'],
    ['r2e-gym', { ...R2E_GYM_ROW, problem_statement: '' }, 'problem_statement: '],
    ['skyrl-v0', { data_source: 'math', instance: SWE_BENCH_ROW }, 'data_source: math is none of'],
    ['skyrl-v0', { data_source: 'swe-gym', instance: '{' }, 'instance: is not JSON'],
    ['skyrl-v0', { data_source: 'swe-gym', instance: null }, 'instance: is not an object'],
  ])('of %s is refused with the row and the field: %#', (dataset, fields, message) => {
    expect(() => task(dataset, fields)).toThrow(
      expect.objectContaining({
        code: 'schema_violation',
        message: expect.stringContaining(`rows.jsonl:7: ${message}`),
      }),
    );
  });

  it('may have a field that the caller ignores', () => {
    expect(() => task('swebench', { ...SWE_BENCH_ROW, mine: 1 }, { ignoredFields: ['mine'] })).not.toThrow();
  });
});
