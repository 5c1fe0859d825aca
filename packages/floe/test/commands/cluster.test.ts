import { chmod, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Command } from 'commander';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { stringify } from 'yaml';
import { registerCluster } from '../../src/commands/cluster.ts';

/**
 * Shell scripts that replace Slurm's programs and log their arguments. sbatch counts its jobs in a file, and squeue prints the queue that
 * the test wrote to a file.
 */
const FAKES = {
  sbatch: `n=$(($(wc -l <"$FAKE/jobs") + 1)); echo "$n" >>"$FAKE/jobs"
if [[ -e $FAKE/refuse && $n -ge 3 ]]; then echo 'sbatch: error: invalid partition' >&2; exit 1; fi
echo "$((100 + n));cluster"; env >"$FAKE/env"`,
  squeue: 'cat "$FAKE/queue"',
  scancel: ': >"$FAKE/queue"',
};

describe('floe cluster', () => {
  let dir: string;
  let config: string;
  const before = { PATH: process.env.PATH, FAKE: process.env.FAKE, FLOE_TOKEN: process.env.FLOE_TOKEN };
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-submission-'));
    for (const [name, body] of Object.entries(FAKES)) {
      await writeFile(join(dir, name), `#!/bin/bash\necho "${name} $*" >>"$FAKE/calls"\n${body}\n`);
      await chmod(join(dir, name), 0o755);
    }
    for (const name of ['calls', 'jobs', 'queue']) await writeFile(join(dir, name), '');
    config = join(dir, 'cluster.yaml');
    const nodes = [{ name: 'cpu', count: 2 }];
    await writeFile(config, stringify({ name: 'demo', shared: join(dir, 'shared'), server: { replicas: 2 }, nodes }));
    Object.assign(process.env, { PATH: `${dir}:${before.PATH}`, FAKE: dir, FLOE_TOKEN: 'secret-of-the-user' });
    vi.spyOn(process.stdout, 'write').mockReturnValue(true);
  });
  afterEach(async () => {
    vi.restoreAllMocks();
    for (const [name, value] of Object.entries(before)) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
    await rm(dir, { recursive: true });
  });

  async function floe(...args: string[]): Promise<void> {
    const program = new Command();
    registerCluster(program);
    await program.parseAsync(['node', 'floe', 'cluster', ...args, '--config', config]);
  }
  const calls = async (): Promise<string[]> => (await readFile(join(dir, 'calls'), 'utf8')).trim().split('\n');
  const queue = (...rows: string[]): Promise<void> => writeFile(join(dir, 'queue'), rows.join('\n'));

  it('submits each job after the jobs that it depends on and stores their ids', async () => {
    await floe('slurm');
    const scripts = join(dir, 'shared', 'demo', 'scripts');
    expect((await calls()).filter((call) => call.startsWith('sbatch'))).toEqual([
      `sbatch --parsable ${scripts}/database.sbatch`,
      `sbatch --parsable --dependency=after:101 ${scripts}/server.sbatch`,
      `sbatch --parsable --dependency=after:102_1 ${scripts}/cpu.sbatch`,
    ]);
    expect(JSON.parse(await readFile(join(dir, 'shared', 'demo', 'jobs.json'), 'utf8'))).toEqual({
      cluster: 'demo',
      jobs: [
        { name: 'database', job_id: '101', count: 1 },
        { name: 'server', job_id: '102', count: 2 },
        { name: 'cpu', job_id: '103', count: 2 },
      ],
    });
  });

  it('creates secrets that only their owner can read and passes none to Slurm', async () => {
    await floe('slurm');
    const run = join(dir, 'shared', 'demo');
    expect((await stat(run)).mode & 0o777).toBe(0o700);
    const token = await readFile(join(run, 'token'), 'utf8');
    expect(token.length).toBeGreaterThan(40);
    for (const name of ['token', 'database-password', 'jobs.json'])
      expect((await stat(join(run, name))).mode & 0o777).toBe(0o600);
    for (const name of ['database', 'server', 'cpu'])
      expect(await readFile(join(run, 'scripts', `${name}.sbatch`), 'utf8')).not.toContain(token.trim());
    expect(await readFile(join(dir, 'env'), 'utf8')).not.toContain('secret-of-the-user');
    // A second `floe cluster slurm` must keep the server's token and the database password, because the existing database still has the
    // first password.
    await floe('slurm');
    expect(await readFile(join(run, 'token'), 'utf8')).toBe(token);
  });

  it('writes the scripts and submits nothing in a dry run', async () => {
    await floe('slurm', '--dry-run', '--out', join(dir, 'out'));
    expect(await readFile(join(dir, 'out', 'server.sbatch'), 'utf8')).toContain('#SBATCH --array=1-2');
    expect(await readFile(join(dir, 'calls'), 'utf8')).toBe('');
    await expect(stat(join(dir, 'shared'))).rejects.toMatchObject({ code: 'ENOENT' });
  });

  it('cancels submitted jobs when a job is refused and reports the message of Slurm', async () => {
    await writeFile(join(dir, 'refuse'), '');
    const refused = { code: 'setup_failed', message: expect.stringContaining('invalid partition') };
    await expect(floe('slurm')).rejects.toMatchObject(refused);
    expect((await calls()).at(-1)).toBe('scancel --quiet 101 102');
  });

  it('refuses to start a cluster that is running', async () => {
    await floe('slurm');
    await queue('102_1|102|RUNNING|h|1:00|None');
    const refused = {
      code: 'conflict',
      message: expect.stringMatching(/102_1: end them with floe cluster stop --config \S/),
    };
    await expect(floe('slurm')).rejects.toMatchObject(refused);
    expect(await readFile(join(dir, 'jobs'), 'utf8')).toBe('1\n2\n3\n');
  });

  it('ends only its own jobs: running ones with SIGTERM, queued ones immediately', async () => {
    await floe('slurm');
    await queue('103_1|103|RUNNING|h|1:00|None', '103_2|103|PENDING||0:00|Resources', '99|99|RUNNING|h|1:00|None');
    await floe('stop');
    const cancelled = (await calls()).filter((call) => call.startsWith('scancel'));
    expect(cancelled).toEqual(['scancel --quiet 103_2', 'scancel --quiet --batch --signal=TERM 103_1']);
  });

  it('fails when Slurm is not installed', async () => {
    process.env.PATH = '/nowhere';
    await expect(floe('slurm')).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringContaining('sbatch'),
    });
  });
});
