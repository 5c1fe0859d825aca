import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { chmod, mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeError, MIB, parseAs, parseJson } from '@floe-rl/core';
import { z } from 'zod';
import { type ClusterConfig, runPaths } from '../deployment/cluster-config.ts';
import type { PlannedJob } from '../deployment/slurm-plan.ts';

const submittedSchema = z.strictObject({
  cluster: z.string(),
  jobs: z.array(z.strictObject({ name: z.string(), job_id: z.string().regex(/^\d+$/), count: z.int() })),
});
/** The jobs of a cluster that were submitted to Slurm. They are stored as a JSON file in the cluster's run directory. */
export type SubmittedJobs = z.infer<typeof submittedSchema>;

/** Reads the jobs of the last submission; an empty list when none was submitted. Throws `schema_violation` for an invalid file. */
export async function readSubmitted(config: ClusterConfig): Promise<SubmittedJobs> {
  const path = runPaths(config).jobs;
  try {
    return parseAs(submittedSchema, parseJson(await readFile(path)), path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return { cluster: config.name, jobs: [] };
    throw error;
  }
}

/** Writes the list of submitted jobs to its file in the run directory. The file is replaced atomically. */
export async function writeSubmitted(config: ClusterConfig, submitted: SubmittedJobs): Promise<void> {
  const { jobs } = runPaths(config);
  await writeFile(`${jobs}.new`, `${JSON.stringify(submitted, null, 1)}\n`, { mode: 0o600 });
  await rename(`${jobs}.new`, jobs);
}

/**
 * Creates the cluster's run directory, readable only by its owner, and in it the secrets that the jobs share. Existing secrets are kept,
 * because the database of an earlier run still has its old password. The files with the addresses of earlier servers and databases are
 * removed.
 */
export async function prepareRunDir(config: ClusterConfig): Promise<void> {
  const files = runPaths(config);
  for (const folder of files.folders) {
    await mkdir(folder, { recursive: true, mode: 0o700 });
    await chmod(folder, 0o700);
  }
  for (const name of await readdir(files.servers)) await rm(join(files.servers, name));
  await rm(files.databaseUrl, { force: true });
  await createSecret(files.token);
  await createSecret(files.password);
}

/** Writes a random secret to a file, unless the file exists. */
async function createSecret(path: string): Promise<void> {
  try {
    await writeFile(path, `${randomBytes(32).toString('base64url')}\n`, { mode: 0o600, flag: 'wx' });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    await chmod(path, 0o600);
  }
}

/** Writes the job scripts of a plan to a folder. */
export async function writeScripts(folder: string, plan: readonly PlannedJob[]): Promise<void> {
  await mkdir(folder, { recursive: true });
  for (const { file, script } of plan) await writeFile(join(folder, file), script, { mode: 0o700 });
}

/** A job as Slurm's queue lists it. Each element of a job array is a separate entry. */
export type QueuedJob = {
  /** Id of the job, for example 17, or 17_2 for an element of an array. */
  readonly id: string;
  /** Id of the array, or of the job itself when it is not in an array. */
  readonly arrayId: string;
  readonly state: string;
  readonly host: string;
  readonly elapsed: string;
  readonly reason: string;
};

/** Longest time that a Slurm program may run, ms. The programs reply within seconds unless Slurm's controller is down. */
const SLURM_TIMEOUT_MS = 60_000;

/** Submits a job script with sbatch. Resolves to the job's id. Throws `setup_failed` with the message of sbatch. */
export async function submitJob(script: string, options: readonly string[]): Promise<string> {
  const [id = ''] = (await slurm('sbatch', ['--parsable', ...options, script])).trim().split(';');
  if (/^\d+$/.test(id)) return id;
  throw new FloeError('setup_failed', `sbatch printed ${JSON.stringify(id)} instead of a job id`);
}

/** Queries Slurm's queue. Resolves to the given jobs that have not ended. */
export async function queuedJobs(ids: readonly string[]): Promise<QueuedJob[]> {
  if (ids.length === 0) return [];
  // Lists all jobs of this user, because squeue fails when it is given an id that it no longer knows.
  const user = String(process.getuid?.() ?? 0);
  const text = await slurm('squeue', ['--noheader', '--array', `--user=${user}`, '--format=%i|%F|%T|%N|%M|%r']);
  const jobs = text.split('\n').map((row): QueuedJob => {
    const [id = '', arrayId = '', state = '', host = '', elapsed = '', reason = ''] = row.trim().split('|');
    return { id, arrayId, state, host, elapsed, reason };
  });
  return jobs.filter((job) => ids.includes(job.arrayId) && job.state !== 'COMPLETED' && job.state !== 'CANCELLED');
}

/** Sends SIGTERM to the scripts of running Slurm jobs, so that they shut down gracefully. */
export async function terminateJobs(ids: readonly string[]): Promise<void> {
  await slurm('scancel', ['--quiet', '--batch', '--signal=TERM', ...ids]);
}

/** Cancels queued and running Slurm jobs without a graceful shutdown. */
export async function cancelJobs(ids: readonly string[]): Promise<void> {
  await slurm('scancel', ['--quiet', ...ids]);
}

/** Returns the environment without floe's and PostgreSQL's variables, so that the user's secrets do not reach the jobs. */
function jobEnvironment(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(FLOE_|PG)/.test(name)));
}

function slurm(program: string, args: readonly string[]): Promise<string> {
  return new Promise((resolve, reject) => {
    const options = { timeout: SLURM_TIMEOUT_MS, env: jobEnvironment(), maxBuffer: 64 * MIB };
    execFile(program, args, options, (error, stdout, stderr) => {
      if (error === null) return resolve(stdout);
      const missing = (error as NodeJS.ErrnoException).code === 'ENOENT';
      const reason = missing ? 'the program is not installed; run this on a host that submits to Slurm' : stderr.trim();
      reject(new FloeError('setup_failed', `${program}: ${reason || error.message}`, { program }, error));
    });
  });
}
