import { randomBytes } from 'node:crypto';
import { chmod, mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { parseAs, parseJson } from '../core/parse.ts';
import { type ClusterConfig, runPaths } from '../deployment/cluster-config.ts';
import type { PlannedJob } from '../deployment/slurm-plan.ts';

const submittedSchema = z.strictObject({
  cluster: z.string(),
  jobs: z.array(z.strictObject({ name: z.string(), job_id: z.string().regex(/^\d+$/), count: z.int() })),
});
/** What was submitted for a cluster; kept in its run directory. */
export type Submitted = z.infer<typeof submittedSchema>;

/** The jobs of the cluster as they were submitted last; none when it never ran. Throws `schema_violation` for another file. */
export async function readSubmitted(config: ClusterConfig): Promise<Submitted> {
  const path = runPaths(config).jobs;
  try {
    return parseAs(submittedSchema, parseJson(await readFile(path)), path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return { cluster: config.name, jobs: [] };
    throw error;
  }
}

export async function writeSubmitted(config: ClusterConfig, submitted: Submitted): Promise<void> {
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
