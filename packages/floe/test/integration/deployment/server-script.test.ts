import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { FakeJob } from '../../deployment/fake-job.ts';

describe('the script of a replica', () => {
  let job: FakeJob;
  beforeEach(async () => {
    job = await FakeJob.create();
  });
  afterEach(() => job.dispose());

  function start(env: NodeJS.ProcessEnv = {}): Promise<ChildProcess> {
    const options = ['--config', '/shared/settings of all.yaml'];
    const engines = [{ url: 'http://engine:8000', model: "it's $(id)" }];
    const config = { database: { kind: 'sqlite' as const }, server: { replicas: 1, options }, engines };
    return job.start('server', config, { SLURM_ARRAY_TASK_ID: '1', ...env });
  }

  it('registers existing engines and replaces their earlier registration', async () => {
    const child = await start();
    const calls = await job.called(/^engines add/);
    expect(calls.at(-1)).toBe(
      "engines add http://engine:8000 --replace --kind vllm --pool default --model it's $(id) " +
        `--wait 0 --url http://here:8080 --token-file ${job.dir}/shared/demo/token`,
    );
    child.kill('SIGTERM');
    expect(await once(child, 'exit')).toEqual([0, null]);
    expect(await job.calls()).not.toContain('scontrol requeue 7');
  });

  it('passes additional options to the server', async () => {
    await start();
    const calls = await job.called(/^server /);
    expect(calls.find((call) => call.startsWith('server '))).toMatch(/ --config \/shared\/settings of all\.yaml$/);
  });

  it('is requeued when existing engines cannot be registered', async () => {
    const child = await start({ FAKE_REFUSED: 'add' });
    expect(await once(child, 'exit')).toEqual([1, null]);
    expect((await job.calls()).slice(-2)).toEqual(['server ends', 'scontrol requeue 7']);
  });
});
