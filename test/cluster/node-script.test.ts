import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { watch as watchFile } from 'node:fs';
import { chmod, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { slurmPlan } from '../../src/cluster/slurm-plan.ts';
import { fullConfig } from './configs.ts';

/** Writes down what it was called with; as a gateway or an engine it stays until SIGTERM, which it writes down too. */
const FAKE_FLOE = `#!/bin/bash
case $1 in
gateway | serve) trap 'printf "%s ends\\n" "$1" >>"$FAKE_LOG"; exit 0' TERM ;;
esac
printf '%s\\n' "$*" >>"$FAKE_LOG"
case $1 in
gateway | serve)
  while :; do sleep 0.05 & wait; done
  ;;
esac
if [[ $1 == cluster && $3 == *FAIL* ]]; then exit 1; fi
# There is no such engine.
if [[ "$1 $2" == 'engines remove' ]]; then exit 2; fi
`;

const FAKE_SCONTROL = `#!/bin/bash
printf 'scontrol %s\\n' "$*" >>"$FAKE_LOG"
`;

describe('the script of a node', () => {
  let dir: string;
  let log: string;
  let job: ChildProcess | null = null;
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-node-script-'));
    log = join(dir, 'log');
    await writeFile(log, '');
    for (const [name, text] of [
      ['floe', FAKE_FLOE],
      ['scontrol', FAKE_SCONTROL],
    ] as const) {
      await writeFile(join(dir, name), text);
      await chmod(join(dir, name), 0o755);
    }
    await mkdir(join(dir, 'shared', 'demo'), { recursive: true });
  });
  afterEach(async () => {
    job?.kill('SIGKILL');
    job = null;
    await rm(dir, { recursive: true });
  });

  async function start(health = '/health', env: NodeJS.ProcessEnv = {}): Promise<ChildProcess> {
    const config = fullConfig({
      shared: join(dir, 'shared'),
      scratch: dir,
      host_name: 'here',
      floe: [join(dir, 'floe')],
      setup: null,
      tls: null,
      nodes: [
        {
          name: 'gpu',
          count: 3,
          pools: { run: 3 },
          engines: [
            {
              command: [join(dir, 'floe'), 'serve', '{port}', "it's $(id)"],
              count: 2,
              gpus: 2,
              health,
              max_concurrency: 9,
            },
          ],
        },
      ],
    });
    const script = slurmPlan(config).find(({ name }) => name === 'gpu')?.script ?? '';
    await writeFile(join(dir, 'gpu.sbatch'), script);
    job = spawn('bash', [join(dir, 'gpu.sbatch')], {
      stdio: 'ignore',
      env: {
        ...process.env,
        FAKE_LOG: log,
        PATH: `${dir}:${process.env.PATH}`,
        SLURM_JOB_ID: '7',
        SLURM_ARRAY_TASK_ID: '2',
        CUDA_VISIBLE_DEVICES: '0,1,2,3',
        ...env,
      },
    });
    return job;
  }

  /** Resolves once the log has such a line. */
  async function logged(pattern: RegExp): Promise<string[]> {
    const watcher = watchFile(log);
    try {
      for (;;) {
        const changed = once(watcher, 'change');
        const text = await readFile(log, 'utf8');
        if (pattern.test(text)) return text.trim().split('\n');
        await changed;
      }
    } finally {
      watcher.close();
    }
  }

  it('starts engines, waits for them, registers them, and then the node', async () => {
    await start();
    const lines = await logged(/^gateway/m);
    const servers = `file:${dir}/shared/demo/servers`;
    expect(lines[0]).toBe(`cluster wait ${servers} --seconds 600`);
    // Ports count on over the nodes of a role, so that two may share a host.
    expect(lines).toEqual(expect.arrayContaining(["serve 8002 it's $(id)", "serve 8003 it's $(id)"]));
    const add = (port: number): string =>
      `engines add http://here:${port} --id demo-gpu-2-${port} --kind vllm --pool default --max-concurrency 9 ` +
      `--wait 0 --url ${servers} --token-file ${dir}/shared/demo/token`;
    expect(lines.filter((line) => line.startsWith('engines add'))).toEqual([add(8002), add(8003)]);
    expect(lines.at(-1)).toMatch(
      /^gateway .*--node-id demo-gpu-2 --node-host here --engine-locality prefer_local .*--run 3$/,
    );
  });

  it('registers its engines anew when an earlier run left them registered on another host', async () => {
    await start();
    const calls = (await logged(/^gateway/m)).filter((line) => line.startsWith('engines'));
    expect(calls.map((line) => line.replace(/ http.*?--id| --wait.*/g, ''))).toEqual([
      'engines remove demo-gpu-2-8002',
      expect.stringMatching(/^engines add demo-gpu-2-8002 /),
      'engines remove demo-gpu-2-8003',
      expect.stringMatching(/^engines add demo-gpu-2-8003 /),
    ]);
  });

  it('hands sessions back first when it is told to end, then takes its engines out, and is not queued again', async () => {
    const child = await start();
    await logged(/^gateway/m);
    child.kill('SIGTERM');
    expect(await once(child, 'exit')).toEqual([0, null]);
    const lines = (await readFile(log, 'utf8')).trim().split('\n');
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
    const text = await readFile(log, 'utf8');
    expect(text.includes('scontrol requeue 7')).toBe(again);
    expect(text).not.toMatch(/^gateway/m);
    // The engines are told to end, and may do so a moment after the script.
    await expect.poll(async () => (await readFile(log, 'utf8')).match(/serve ends/g)).toHaveLength(2);
  });

  it('does not start more engines than it has GPUs for', async () => {
    const child = await start('/health', { CUDA_VISIBLE_DEVICES: '0,1,2' });
    expect(await once(child, 'exit')).toEqual([1, null]);
    expect(await readFile(log, 'utf8')).not.toMatch(/^(gateway|engines add)/m);
  });

  it('keeps away from a scratch directory that is somebody else’s', async () => {
    await mkdir(join(dir, 'elsewhere'));
    await symlink(join(dir, 'elsewhere'), join(dir, `floe-${process.getuid?.()}-demo`));
    const child = await start();
    expect(await once(child, 'exit')).toEqual([1, null]);
    expect(await readFile(log, 'utf8')).toBe('');
  });
});
