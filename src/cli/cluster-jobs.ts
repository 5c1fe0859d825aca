import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { chmod, mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { MIB } from '../core/bytes.ts';
import { FloeError } from '../core/errors.ts';
import { parseAs, parseJson } from '../core/parse.ts';
import { type ClusterConfig, runPaths } from '../deployment/cluster-config.ts';
import type { PlannedJob } from '../deployment/slurm-plan.ts';

const submittedSchema = z.strictObject({
  cluster: z.string(),
  jobs: z.array(z.strictObject({ name: z.string(), job_id: z.string().regex(/^\d+$/), count: z.int() })),
});
/** What was submitted for a cluster; kept in its run directory. */
export type SubmittedJobs = z.infer<typeof submittedSchema>;

/** The jobs of the cluster as they were submitted last; none when it never ran. Throws `schema_violation` for another file. */
export async function readSubmitted(config: ClusterConfig): Promise<SubmittedJobs> {
  const path = runPaths(config).jobs;
  try {
    return parseAs(submittedSchema, parseJson(await readFile(path)), path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return { cluster: config.name, jobs: [] };
    throw error;
  }
}

export async function writeSubmitted(config: ClusterConfig, submitted: SubmittedJobs): Promise<void> {
  const { jobs } = runPaths(config);
  await writeFile(`${jobs}.new`, `${JSON.stringify(submitted, null, 1)}\n`, { mode: 0o600 });
  await rename(`${jobs}.new`, jobs);
}

/**
 * Makes the run directory, readable by its owner alone, with the secrets that its jobs share. Secrets of an earlier run are
 * kept, as a database knows its password; what it told of where its servers were is removed.
 */
export async function prepareRunDir(config: ClusterConfig): Promise<void> {
  const files = runPaths(config);
  for (const folder of files.folders) {
    await mkdir(folder, { recursive: true, mode: 0o700 });
    await chmod(folder, 0o700);
  }
  for (const name of await readdir(files.servers)) await rm(join(files.servers, name));
  await rm(files.databaseUrl, { force: true });
  await secret(files.token);
  await secret(files.password);
}

async function secret(path: string): Promise<void> {
  try {
    await writeFile(path, `${randomBytes(32).toString('base64url')}\n`, { mode: 0o600, flag: 'wx' });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    await chmod(path, 0o600);
  }
}

/** Writes the scripts to a folder. */
export async function writeScripts(folder: string, plan: readonly PlannedJob[]): Promise<void> {
  await mkdir(folder, { recursive: true });
  for (const { file, script } of plan) await writeFile(join(folder, file), script, { mode: 0o700 });
}

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
export async function terminateJobs(ids: readonly string[]): Promise<void> {
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
    const options = { timeout: ANSWER_TIMEOUT_MS, env: cleanEnvironment(), maxBuffer: 64 * MIB };
    execFile(program, args, options, (error, stdout, stderr) => {
      if (error === null) return resolve(stdout);
      const missing = (error as NodeJS.ErrnoException).code === 'ENOENT';
      const said = missing ? 'there is no such program here; is this a host that submits to Slurm?' : stderr.trim();
      reject(new FloeError('setup_failed', `${program}: ${said || error.message}`, { program }, error));
    });
  });
}
