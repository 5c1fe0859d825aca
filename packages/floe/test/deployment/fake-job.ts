import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { watch as watchFile } from 'node:fs';
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ClusterConfigInput } from '../../src/deployment/cluster-config.ts';
import { slurmPlan } from '../../src/deployment/slurm-plan.ts';
import { fullConfig } from './full-config.ts';

/**
 * Shell script that is run instead of floe and the engines, and logs its arguments. As a server, a gateway or an engine it runs until
 * SIGTERM, which it logs as well. The environment variable FAKE_REFUSED names the subcommand of `floe engines` that fails. When
 * FAKE_UNRESPONSIVE is `yes`, engines ignore SIGTERM.
 */
const FAKE_FLOE = `#!/bin/bash
case $1 in
server | gateway | serve) trap 'printf "%s ends\\n" "$1" >>"$FAKE_LOG"; exit 0' TERM ;;
esac
if [[ "$1 \${FAKE_UNRESPONSIVE:-}" == 'serve yes' ]]; then trap '' TERM; fi
printf '%s\\n' "$*" >>"$FAKE_LOG"
case $1 in
server | gateway | serve)
  while :; do sleep 0.05 & wait; done
  ;;
esac
if [[ $1 == cluster && $3 == http* ]]; then
  # Returns once the programs that the script waits for have started: the server, or both engines.
  until [[ $(grep -cE '^serve [0-9]' "$FAKE_LOG") == 2 ]] || grep -q '^server ' "$FAKE_LOG"; do sleep 0.05; done
  if [[ $3 == *FAIL* ]]; then exit 1; fi
fi
if [[ "$1 $2" == "engines \${FAKE_REFUSED:-}" ]]; then exit 2; fi
`;

const FAKE_SCONTROL = `#!/bin/bash
printf 'scontrol %s\\n' "$*" >>"$FAKE_LOG"
`;

/**
 * Shell script that is run instead of `sleep`. When the fake engines ignore SIGTERM, it returns at once, so that the time that they have to
 * exit passes immediately.
 */
const FAKE_SLEEP = `#!/bin/bash
if [[ -n \${FAKE_UNRESPONSIVE:-} && $1 == 0.1 ]]; then exit 0; fi
exec /bin/sleep "$@"
`;

/** Runs the script of a Slurm job with substitutes for floe and Slurm that only log their arguments. */
export class FakeJob {
  readonly dir: string;
  private readonly log: string;
  private child: ChildProcess | null = null;

  private constructor(dir: string) {
    this.dir = dir;
    this.log = join(dir, 'log');
  }

  static async create(): Promise<FakeJob> {
    const job = new FakeJob(await mkdtemp(join(tmpdir(), 'floe-job-')));
    await writeFile(job.log, '');
    for (const [name, text] of [
      ['floe', FAKE_FLOE],
      ['scontrol', FAKE_SCONTROL],
      ['sleep', FAKE_SLEEP],
    ] as const) {
      await writeFile(join(job.dir, name), text);
      await chmod(join(job.dir, name), 0o755);
    }
    await mkdir(join(job.dir, 'shared', 'demo', 'servers'), { recursive: true });
    return job;
  }

  async dispose(): Promise<void> {
    this.child?.kill('SIGKILL');
    for (const pid of await this.running()) spawnSync('kill', ['-KILL', String(pid)]);
    await rm(this.dir, { recursive: true });
  }

  async start(name: string, config: Partial<ClusterConfigInput>, env: NodeJS.ProcessEnv): Promise<ChildProcess> {
    const full = fullConfig({
      shared: join(this.dir, 'shared'),
      scratch: this.dir,
      host_name: 'here',
      floe: [join(this.dir, 'floe')],
      setup: null,
      tls: null,
      ...config,
    });
    const file = join(this.dir, `${name}.sbatch`);
    await writeFile(file, slurmPlan(full).find((job) => job.name === name)?.script ?? '');
    this.child = spawn('bash', [file], {
      stdio: 'ignore',
      env: {
        ...process.env,
        FAKE_LOG: this.log,
        PATH: `${this.dir}:${process.env.PATH}`,
        SLURM_JOB_ID: '7',
        ...env,
      },
    });
    return this.child;
  }

  async calls(): Promise<string[]> {
    const text = (await readFile(this.log, 'utf8')).trim();
    return text === '' ? [] : text.split('\n');
  }

  /** Waits until a logged call of a substitute program matches the pattern, and resolves to all logged calls. */
  async called(pattern: RegExp): Promise<string[]> {
    const watcher = watchFile(this.log);
    try {
      for (;;) {
        const changed = once(watcher, 'change');
        const calls = await this.calls();
        if (calls.some((call) => pattern.test(call))) return calls;
        await changed;
      }
    } finally {
      watcher.close();
    }
  }

  /**
   * Returns the ids of the processes that run the subcommand `command` of the fake `floe`; without `command`, of all processes that run
   * `floe`.
   */
  async running(command?: string): Promise<number[]> {
    const begin = `${join(this.dir, 'floe')}\0${command === undefined ? '' : `${command}\0`}`;
    const pids: number[] = [];
    for (const pid of (await readdir('/proc')).filter((name) => /^\d+$/.test(name))) {
      // The process may have ended since /proc was listed, and then it has no command line.
      const line = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
      if (line.includes(begin)) pids.push(Number(pid));
    }
    return pids;
  }
}
