import { execFile } from 'node:child_process';
import { FloeError } from '../core/errors.ts';

/** A job as Slurm's queue shows it; each job of an array is one. */
export type QueuedJob = {
  /** Such as 17, or 17_2 in an array. */
  readonly id: string;
  /** Of the array; the job's own id outside of one. */
  readonly arrayId: string;
  readonly state: string;
  readonly host: string;
  readonly elapsed: string;
  readonly reason: string;
};

/** Slurm's programs answer at once or not at all: their controller may be down. */
const ANSWER_TIMEOUT_MS = 60_000;

/** Submits a script; resolves to the job's id. Throws `setup_failed` with what sbatch said. */
export async function submitJob(script: string, options: readonly string[]): Promise<string> {
  const [id = ''] = (await slurm('sbatch', ['--parsable', ...options, script])).trim().split(';');
  if (/^\d+$/.test(id)) return id;
  throw new FloeError('setup_failed', `sbatch answered ${JSON.stringify(id)} where a job id was expected`);
}

/** Those of the given jobs that have not ended. */
export async function queuedJobs(ids: readonly string[]): Promise<QueuedJob[]> {
  if (ids.length === 0) return [];
  // Asked for one that it has forgotten, squeue tells nothing of the others either; so it is asked for all of this user.
  const user = String(process.getuid?.() ?? 0);
  const text = await slurm('squeue', ['--noheader', '--array', `--user=${user}`, '--format=%i|%F|%T|%N|%M|%r']);
  const jobs = text.split('\n').map((row): QueuedJob => {
    const [id = '', arrayId = '', state = '', host = '', elapsed = '', reason = ''] = row.trim().split('|');
    return { id, arrayId, state, host, elapsed, reason };
  });
  return jobs.filter((job) => ids.includes(job.arrayId) && job.state !== 'COMPLETED' && job.state !== 'CANCELLED');
}

/** Sends SIGTERM to the scripts of running jobs, which then end in order. */
export async function askToEnd(ids: readonly string[]): Promise<void> {
  await slurm('scancel', ['--quiet', '--batch', '--signal=TERM', ...ids]);
}

export async function cancelJobs(ids: readonly string[]): Promise<void> {
  await slurm('scancel', ['--quiet', ...ids]);
}

/** What this user's floe is configured with, secrets among it, is no business of the jobs. */
function cleanEnvironment(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(FLOE_|PG)/.test(name)));
}

function slurm(program: string, args: readonly string[]): Promise<string> {
  return new Promise((resolve, reject) => {
    const options = { timeout: ANSWER_TIMEOUT_MS, env: cleanEnvironment(), maxBuffer: 64 * 1024 * 1024 };
    execFile(program, args, options, (error, stdout, stderr) => {
      if (error === null) return resolve(stdout);
      const missing = (error as NodeJS.ErrnoException).code === 'ENOENT';
      const said = missing ? 'there is no such program here; is this a host that submits to Slurm?' : stderr.trim();
      reject(new FloeError('setup_failed', `${program}: ${said || error.message}`, { program }, error));
    });
  });
}
