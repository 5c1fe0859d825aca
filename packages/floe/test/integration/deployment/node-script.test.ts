import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { FakeJob } from '../../deployment/fake-job.ts';

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

  it('starts engines, registers them when they are ready, and then starts the gateway', async () => {
    await start();
    const lines = await job.called(/^gateway/);
    const servers = `file:${job.dir}/shared/demo/servers`;
    expect(lines[0]).toBe(`cluster wait ${servers} --seconds 600`);
    // The ports of node 2 follow the ports of node 1, so that both nodes may share a host.
    expect(lines).toEqual(expect.arrayContaining(["serve 8002 it's $(id)", "serve 8003 it's $(id)"]));
    const add = (port: number): string =>
      `engines add http://here:${port} --id demo-gpu-2-${port} --replace --kind vllm --pool default --max-concurrency 9 ` +
      `--wait 0 --url ${servers} --token-file ${job.dir}/shared/demo/token`;
    expect(lines.filter((line) => line.startsWith('engines add'))).toEqual([add(8002), add(8003)]);
    expect(lines.at(-1)).toMatch(
      /^gateway .*--node-id demo-gpu-2 --node-host here --engine-locality prefer_local .*--run 3 --config \/shared\/a b\.yaml$/,
    );
  });

  it('waits for a server once more when its engines are ready, and is requeued when they cannot be registered', async () => {
    const child = await start('/health', { FAKE_REFUSED: 'add' });
    expect(await once(child, 'exit')).toEqual([1, null]);
    const calls = await job.calls();
    const first = calls.findIndex((line) => line.startsWith('engines add'));
    expect(calls[first - 1]).toMatch(/^cluster wait file:/);
    expect(calls.slice(first + 1).filter((line) => line.startsWith('engines add'))).toEqual([]);
    expect(calls).toContain('scontrol requeue 7');
  });

  it('kills engines that ignore SIGTERM together with their child processes', async () => {
    const child = await start('/health', { FAKE_UNRESPONSIVE: 'yes' });
    await job.called(/^gateway/);
    // Each engine is a shell script, which may have a child process with the same command line for a moment.
    expect((await job.running('serve')).length).toBeGreaterThanOrEqual(2);
    child.kill('SIGTERM');
    expect(await once(child, 'exit')).toEqual([0, null]);
    expect(await job.running('serve')).toEqual([]);
    expect(await job.calls()).not.toContain('serve ends');
  });

  it('stops the gateway first on SIGTERM, then removes its engines, and is not requeued', async () => {
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
    ['is requeued', '0', true],
    ['is not requeued after the last restart', '10', false],
  ])('%s when an engine does not become ready', async (_, restarts, isRequeued) => {
    const child = await start('/FAIL', { SLURM_RESTART_COUNT: restarts });
    expect(await once(child, 'exit')).toEqual([1, null]);
    const calls = await job.calls();
    expect(calls.includes('scontrol requeue 7')).toBe(isRequeued);
    expect(calls).not.toContainEqual(expect.stringMatching(/^gateway/));
    expect(calls.filter((call) => call === 'serve ends')).toHaveLength(2);
  });

  it('exits when its engines need more GPUs than it has', async () => {
    const child = await start('/health', { CUDA_VISIBLE_DEVICES: '0,1,2' });
    expect(await once(child, 'exit')).toEqual([1, null]);
    expect(await job.calls()).not.toContainEqual(expect.stringMatching(/^(gateway|engines add)/));
  });

  it('refuses a scratch directory that is a link', async () => {
    await mkdir(join(job.dir, 'elsewhere'));
    await symlink(join(job.dir, 'elsewhere'), join(job.dir, `floe-${process.getuid?.()}-demo`));
    const child = await start();
    expect(await once(child, 'exit')).toEqual([1, null]);
    expect(await job.calls()).toEqual([]);
  });
});
