import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { FakeJob } from './fake-job.ts';

describe('the script of a node', () => {
  let job: FakeJob;
  beforeEach(async () => {
    job = await FakeJob.create();
  });
  afterEach(() => job.dispose());

  function start(health = '/health', env: NodeJS.ProcessEnv = {}): Promise<ChildProcess> {
    const command = [join(job.dir, 'floe'), 'serve', '{port}', "it's $(id)"];
    const engines = [{ command, count: 2, gpus: 2, health, max_concurrency: 9 }];
    const nodes = [{ name: 'gpu', count: 3, pools: { run: 3 }, engines, options: ['--config', '/shared/a b.yaml'] }];
    return job.start('gpu', { nodes }, { SLURM_ARRAY_TASK_ID: '2', CUDA_VISIBLE_DEVICES: '0,1,2,3', ...env });
  }

  it('starts engines, waits for them, registers them, and then the node', async () => {
    await start();
    const lines = await job.called(/^gateway/);
    const servers = `file:${job.dir}/shared/demo/servers`;
    expect(lines[0]).toBe(`cluster wait ${servers} --seconds 600`);
    // Ports count on over the nodes of a role, so that two may share a host.
    expect(lines).toEqual(expect.arrayContaining(["serve 8002 it's $(id)", "serve 8003 it's $(id)"]));
    const add = (port: number): string =>
      `engines add http://here:${port} --id demo-gpu-2-${port} --replace --kind vllm --pool default --max-concurrency 9 ` +
      `--wait 0 --url ${servers} --token-file ${job.dir}/shared/demo/token`;
    expect(lines.filter((line) => line.startsWith('engines add'))).toEqual([add(8002), add(8003)]);
    expect(lines.at(-1)).toMatch(
      /^gateway .*--node-id demo-gpu-2 --node-host here --engine-locality prefer_local .*--run 3 --config \/shared\/a b\.yaml$/,
    );
  });

  it('waits for a server again when its engines have loaded, and is queued again when they cannot be registered', async () => {
    const child = await start('/health', { FAKE_REFUSED: 'add' });
    expect(await once(child, 'exit')).toEqual([1, null]);
    const calls = await job.calls();
    const first = calls.findIndex((line) => line.startsWith('engines add'));
    expect(calls[first - 1]).toMatch(/^cluster wait file:/);
    expect(calls.slice(first + 1).filter((line) => line.startsWith('engines add'))).toEqual([]);
    expect(calls).toContain('scontrol requeue 7');
  });

  it('kills engines that do not end when they are told to, and everything that they have started', async () => {
    const child = await start('/health', { FAKE_DEAF: 'yes' });
    await job.called(/^gateway/);
    const engines = await job.running('serve');
    expect(engines).toHaveLength(2);
    child.kill('SIGTERM');
    expect(await once(child, 'exit')).toEqual([0, null]);
    expect(await job.running('serve')).toEqual([]);
    expect(await job.calls()).not.toContain('serve ends');
  });

  it('hands sessions back first when it is told to end, then takes its engines out, and is not queued again', async () => {
    const child = await start();
    await job.called(/^gateway/);
    child.kill('SIGTERM');
    expect(await once(child, 'exit')).toEqual([0, null]);
    const lines = await job.calls();
    const end = lines.slice(lines.indexOf('gateway ends'));
    expect(end.map((line) => line.split(' ').slice(0, 3).join(' '))).toEqual([
      'gateway ends',
      'engines remove demo-gpu-2-8002',
      'engines remove demo-gpu-2-8003',
      'serve ends',
      'serve ends',
    ]);
  });

  it.each([
    ['is queued again', '0', true],
    ['is given up after so many times', '10', false],
  ])('%s when an engine does not come up', async (_, restarts, again) => {
    const child = await start('/FAIL', { SLURM_RESTART_COUNT: restarts });
    expect(await once(child, 'exit')).toEqual([1, null]);
    const calls = await job.calls();
    expect(calls.includes('scontrol requeue 7')).toBe(again);
    expect(calls).not.toContainEqual(expect.stringMatching(/^gateway/));
    expect(calls.filter((call) => call === 'serve ends')).toHaveLength(2);
  });

  it('does not start more engines than it has GPUs for', async () => {
    const child = await start('/health', { CUDA_VISIBLE_DEVICES: '0,1,2' });
    expect(await once(child, 'exit')).toEqual([1, null]);
    expect(await job.calls()).not.toContainEqual(expect.stringMatching(/^(gateway|engines add)/));
  });

  it('keeps away from a scratch directory that is somebody else’s', async () => {
    await mkdir(join(job.dir, 'elsewhere'));
    await symlink(join(job.dir, 'elsewhere'), join(job.dir, `floe-${process.getuid?.()}-demo`));
    const child = await start();
    expect(await once(child, 'exit')).toEqual([1, null]);
    expect(await job.calls()).toEqual([]);
  });
});
