import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { VirtualClock } from '@floe-rl/core';
import { evaluatorRegistry } from '@floe-rl/evaluators';
import { createTaskCheck, harnessRegistry } from '@floe-rl/node';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Workbench } from '../workbench.ts';
import { PolarCaller } from './polar-caller.ts';

/** The task that the appendix of the Polar paper prints, with the placeholders of a trainer. */
const PAPER_TASK = readFileSync(join(import.meta.dirname, 'paper-task.json'), 'utf8');

const ROW = {
  instance_id: 'getmoto__moto-7365',
  repo: 'getmoto/moto',
  version: '5.0',
  base_commit: '7f6c9cb1deafb280fe7fcc7551c38e397f11a706',
  test_patch: 'diff --git a/t.py b/t.py\n--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-a\n+b\n',
  FAIL_TO_PASS: ['t.py::a'],
  PASS_TO_PASS: [],
};

/** The values that a trainer puts in the place of the placeholders. */
const VALUES: Readonly<Record<string, unknown>> = {
  rollout_id: 3,
  group_index: 4,
  'sample.metadata.runtime_image': 'xingyaoww/sweb.eval.x86_64.getmoto_s_moto-7365:latest',
  'sample.metadata.instance': ROW,
  served_model_name: 'Qwen/Qwen3.5-4B',
  trainer_host: '127.0.0.1',
  callback_port: 9000,
  rollout_group_id: 'g4',
  policy_version: '12',
  rollout_step: '3',
};

/** Returns the JSON of the task with values for its placeholders. A text that is one placeholder becomes the value itself. */
function filled(template: string): Record<string, unknown> {
  const whole = template.replace(/"\{([a-z_.]+)\}"/g, (_, name: string) => JSON.stringify(VALUES[name]));
  return JSON.parse(whole.replace(/\{([a-z_.]+)\}/g, (_, name: string) => String(VALUES[name])));
}

let bench: Workbench;
let polar: PolarCaller;
beforeEach(async () => {
  bench = await Workbench.create(new VirtualClock());
  const validateTask = createTaskCheck(harnessRegistry(), evaluatorRegistry());
  polar = new PolarCaller(await bench.server({ polar: 'prefix' }, { validateTask }));
});
afterEach(() => bench.dispose());

/** Submits a task with an evaluator. Resolves with the warnings and the evaluator of the session. */
async function translated(evaluator: Record<string, unknown>): Promise<{ warnings: string[]; evaluator: unknown }> {
  const { status, body } = await polar.submitPolar({ task_id: 'e', evaluator });
  if (status !== 200) throw new Error(JSON.stringify(body));
  const [lease] = await polar.leaseSome(1);
  return { warnings: body.warnings, evaluator: lease?.task.evaluator };
}

describe('the task in the appendix of the Polar paper', () => {
  it('is accepted as it is, and graded by swebench in a fresh runtime', async () => {
    const task = filled(PAPER_TASK);
    const { status, body } = await polar.call<unknown>('POST', '/polar/rollout/task/submit', task);
    expect([status, body]).toEqual([200, { task_id: 'polar-swegym-3-4', status: 'running', warnings: [] }]);
    const [lease] = await polar.leaseSome(1);
    expect(lease?.task).toMatchObject({
      runtime: { backend: 'docker', network: 'host', workdir: '/polar/session/workspace' },
      agent: { harness: 'codex', model_name: 'Qwen/Qwen3.5-4B' },
      evaluator: {
        strategy: 'swebench',
        refresh_runtime: true,
        config: {
          instance: ROW,
          repo_dir: '/testbed',
          patch_command: 'cd /polar/session/workspace && git add -A && git diff --cached --binary',
        },
      },
    });
  });
});

describe('the evaluator swebench_harness of a Polar client', () => {
  it('keeps all its options, and grades in a fresh runtime also where the task states none', async () => {
    const options = { apply_timeout: 30, test_timeout: 900, exclude_patterns: ['*.log'] };
    const config = { instance: ROW, repo_dir: '/repo', patch_command: null, ...options };
    const sent = { strategy: 'swebench_harness', config, env: { A: '1' }, refresh_runtime: false };
    expect(await translated(sent)).toEqual({
      warnings: [expect.stringContaining('evaluator.refresh_runtime: is ignored')],
      evaluator: {
        strategy: 'swebench',
        config: { instance: ROW, repo_dir: '/repo', ...options },
        env: { A: '1' },
        refresh_runtime: true,
      },
    });
  });
});

describe('the evaluator harbor of a Polar client', () => {
  const harbor = (config: object, fields: object = {}) => ({ strategy: 'harbor', config, ...fields });

  it('has the defaults of Polar', async () => {
    expect(await translated(harbor({ tests_dir: ' /data/tests ' }))).toEqual({
      warnings: [],
      evaluator: {
        strategy: 'harbor',
        config: { tests: ['/data/tests'], timeout: 120, grading: 'polar' },
        env: {},
        refresh_runtime: false,
      },
    });
  });

  it('becomes that of floe with all its options and variables', async () => {
    const options = {
      tests_target: '/checks/',
      verifier_dir: '/rewards',
      test_command: 'python3 /checks/run.py',
      verifier_timeout: '30',
      upload_attempts: 5,
      upload_retry_backoff_seconds: 1,
    };
    expect(await translated(harbor({ tests_dir: '/t', ...options }, { env: { A: '1' } }))).toEqual({
      warnings: [
        expect.stringContaining('evaluator.config.upload_attempts: is ignored'),
        expect.stringContaining('evaluator.config.upload_retry_backoff_seconds: is ignored'),
      ],
      evaluator: {
        strategy: 'harbor',
        config: {
          tests: ['/t'],
          tests_target: '/checks',
          verifier_dir: '/rewards',
          test_command: 'python3 /checks/run.py',
          timeout: 30,
          grading: 'polar',
        },
        env: { A: '1' },
        refresh_runtime: false,
      },
    });
  });

  it('may have the options of floe instead', async () => {
    const config = { tests: ['/t'], timeout: 5 };
    expect((await translated(harbor(config))).evaluator).toMatchObject({ config });
    const carried = harbor({ tests_dir: '/t', artifacts: ['out'] }, { refresh_runtime: true });
    expect(await polar.submitPolar({ task_id: 'f', evaluator: carried })).toMatchObject({ status: 200 });
  });

  it.each([
    ['tests_dir', {}, 'schema_violation'],
    ['tests_dir', { tests_dir: ' ' }, 'schema_violation'],
    ['verifier_timeout', { tests_dir: '/t', verifier_timeout: 0 }, 'schema_violation'],
    ['verifier_dir', { tests_dir: '/t', verifier_dir: 'logs' }, 'schema_violation'],
    ['colour', { tests_dir: '/t', colour: 'red' }, 'schema_violation'],
  ])('is refused with the name of the wrong option: %s', async (name, config, code) => {
    const { status, body } = await polar.submitPolar({ task_id: 'x', evaluator: harbor(config) });
    expect([status, body.error]).toMatchObject([422, { code, message: expect.stringContaining(name) }]);
  });

  it('is refused in a fresh runtime, where Polar cannot grade either', async () => {
    const evaluator = harbor({ tests_dir: '/t' }, { refresh_runtime: true });
    const { body } = await polar.submitPolar({ task_id: 'x', evaluator });
    expect(body.error).toMatchObject({
      code: 'unsupported',
      message: expect.stringMatching(/evaluator\.refresh_runtime: .*set false/),
    });
  });
});

describe('the evaluator harbor_rubric of a Polar client', () => {
  it('is refused with the evaluators to use instead', async () => {
    const config = { tests_dir: '/t', judge_base_url: 'http://127.0.0.1:1/v1', judge_model: 'judge' };
    const { status, body } = await polar.submitPolar({
      task_id: 'r',
      evaluator: { strategy: 'harbor_rubric', config },
    });
    const message = expect.stringMatching(/evaluator\.strategy: .* use multi with the evaluators harbor and judge/);
    expect([status, body.error]).toMatchObject([422, { code: 'unsupported', message }]);
  });
});
