import { join } from 'node:path';
import { type Clock, FloeError, sleep, systemClock } from '@floe-rl/core';
import type { Command } from 'commander';
import { type ClusterConfig, clusterConfigSchema, runPaths } from '../deployment/cluster-config.ts';
import { DRAIN_SECONDS } from '../deployment/script.ts';
import { type PlannedJob, slurmPlan } from '../deployment/slurm-plan.ts';
import {
  cancelJobs,
  prepareRunDir,
  queuedJobs,
  readSubmitted,
  type SubmittedJobs,
  submitJob,
  terminateJobs,
  writeScripts,
  writeSubmitted,
} from './cluster-jobs.ts';
import { waitFor } from './cluster-wait.ts';
import { countOption } from './options.ts';
import { formatTable, printJson, printLine, printNote } from './print.ts';
import { readYamlFile } from './yaml-file.ts';

type Options = { config: string; json?: boolean };
type SlurmOptions = Options & { dryRun?: boolean; out?: string };

/** Interval at which `floe cluster stop` polls Slurm's queue while it waits for jobs to end, ms. */
const POLL_INTERVAL_MS = 500;

/** Registers the commands of `floe cluster`, which run rollout servers, their database, nodes and engines as jobs of a batch system. */
export function registerCluster(program: Command): void {
  const cluster = program.command('cluster').description('run servers, a database, nodes and engines as Slurm jobs');
  withConfig(cluster.command('slurm').description('write the batch scripts of a cluster and submit them'))
    .option('--dry-run', 'submit nothing; print the scripts, or write them to the --out directory')
    .option('--out <dir>', 'directory to write the scripts to (default: scripts/ in the run directory)')
    .action(async (options: SlurmOptions) => {
      const config = await readYamlFile(options.config, clusterConfigSchema);
      const plan = slurmPlan(config);
      if (options.dryRun === true) await showScripts(plan, options.out);
      else await start(config, plan, options);
    });
  withConfig(cluster.command('status').description('list the jobs of a cluster that have not ended')).action(
    async (options: Options) => status(await readYamlFile(options.config, clusterConfigSchema), options),
  );
  withConfig(
    cluster
      .command('stop')
      .description('end the jobs of a cluster: first nodes and engines, then servers, then the database'),
  ).action(async (options: Options) => {
    const ended = await stop(await readYamlFile(options.config, clusterConfigSchema), systemClock);
    if (options.json) printJson({ ended });
    else printLine(ended === 0 ? 'No job was running.' : `${ended} jobs have ended.`);
  });
  cluster
    .command('wait <url>')
    .description('wait until a URL answers with 2xx, or until a server of a `file:` folder is ready')
    .option('--seconds <n>', 'time limit', '600')
    .option('--pid <pid>', 'fail when this process has ended')
    .option('--ca <file>', 'certificate authorities to trust, in PEM format')
    .action(async (url: string, options: { seconds: string; pid?: string; ca?: string }) => {
      const seconds = countOption('--seconds', options.seconds);
      const pid = options.pid === undefined ? undefined : countOption('--pid', options.pid);
      await waitFor(url, { seconds, pid, ca: options.ca, clock: systemClock });
    });
}

function withConfig(command: Command): Command {
  return command
    .requiredOption(
      '--config <file>',
      'description of the cluster: see docs/guides/run-on-slurm.md and docs/cluster-reference.md',
    )
    .option('--json', 'print JSON');
}

async function showScripts(plan: readonly PlannedJob[], out: string | undefined): Promise<void> {
  if (out !== undefined) {
    await writeScripts(out, plan);
    for (const { file } of plan) printLine(join(out, file));
    return;
  }
  for (const { file, script } of plan) printLine(`# ---- ${file}\n${script}`);
}

async function start(config: ClusterConfig, plan: readonly PlannedJob[], options: SlurmOptions): Promise<void> {
  const before = await readSubmitted(config);
  const running = await queuedJobs(before.jobs.map((job) => job.job_id));
  if (running.length > 0) {
    const ids = running.map((job) => job.id).join(', ');
    throw new FloeError(
      'conflict',
      `the cluster ${config.name} already runs as jobs ${ids}: end them with floe cluster stop --config ${options.config}`,
    );
  }
  const files = runPaths(config);
  await prepareRunDir(config);
  const folder = options.out ?? files.scripts;
  await writeScripts(folder, plan);
  const submitted = await submitAll(config, plan, folder);
  if (options.json) return printJson({ ...submitted, servers: `file:${files.servers}`, token_file: files.token });
  printLine(
    formatTable(
      ['job', 'id', 'count'],
      submitted.jobs.map((job) => [job.name, job.job_id, job.count]),
    ),
  );
  printLine(`\nexport FLOE_URL=file:${files.servers}`);
  printLine(`floe status --token-file ${files.token}`);
}

/** Submits all jobs of a plan to Slurm. When Slurm refuses a job, cancels the jobs that were already submitted. */
async function submitAll(config: ClusterConfig, plan: readonly PlannedJob[], folder: string): Promise<SubmittedJobs> {
  const jobs: SubmittedJobs['jobs'] = [];
  const ids = new Map<string, string>();
  try {
    for (const { name, file, count, after } of plan) {
      const needed = after === null ? undefined : ids.get(after);
      const job_id = await submitJob(join(folder, file), needed === undefined ? [] : [`--dependency=after:${needed}`]);
      // All rollout servers are one Slurm job array. Jobs that need a server depend on its first element only, because one server is
      // enough.
      ids.set(name, name === 'server' ? `${job_id}_1` : job_id);
      jobs.push({ name, job_id, count });
      // Saves the job list after each submission, so that `floe cluster stop` finds all submitted jobs even if this process is killed.
      await writeSubmitted(config, { cluster: config.name, jobs });
    }
  } catch (error) {
    if (jobs.length > 0) await cancelJobs(jobs.map((job) => job.job_id));
    throw error;
  }
  return { cluster: config.name, jobs };
}

async function status(config: ClusterConfig, options: Options): Promise<void> {
  const { jobs } = await readSubmitted(config);
  const queued = await queuedJobs(jobs.map((job) => job.job_id));
  const nameOf = (arrayId: string): string => jobs.find((job) => job.job_id === arrayId)?.name ?? '';
  if (options.json) return printJson({ jobs: queued.map((job) => ({ name: nameOf(job.arrayId), ...job })) });
  if (jobs.length === 0)
    return printLine(`The cluster was never started. Start it with: floe cluster slurm --config ${options.config}`);
  if (queued.length === 0) return printLine('All jobs have ended.');
  printLine(
    formatTable(
      ['job', 'id', 'state', 'host', 'for', 'reason'],
      queued.map((job) => [nameOf(job.arrayId), job.id, job.state, job.host, job.elapsed, job.reason]),
    ),
  );
}

/**
 * Ends the jobs of a cluster in the order of their dependencies, the database last. Resolves to the number of jobs that were queued or
 * running when `stop` was called.
 */
async function stop(config: ClusterConfig, clock: Clock): Promise<number> {
  const { jobs } = await readSubmitted(config);
  const before = await queuedJobs(jobs.map((job) => job.job_id));
  const waves = [
    jobs.filter((job) => job.name !== 'server' && job.name !== 'database'),
    jobs.filter((job) => job.name === 'server'),
    jobs.filter((job) => job.name === 'database'),
  ];
  for (const wave of waves) {
    const ids = wave.map((job) => job.job_id);
    const queued = await queuedJobs(ids);
    const running = queued.filter((job) => job.state === 'RUNNING').map((job) => job.id);
    const waiting = queued.filter((job) => job.state !== 'RUNNING').map((job) => job.id);
    if (waiting.length > 0) await cancelJobs(waiting);
    if (running.length > 0) await terminateJobs(running);
    await untilEnded(ids, clock);
  }
  return before.length;
}

/** Waits until the given jobs have ended. Cancels the jobs that still run after `DRAIN_SECONDS`. */
async function untilEnded(ids: readonly string[], clock: Clock): Promise<void> {
  const deadline = clock.monotonicMs() + DRAIN_SECONDS * 1000;
  for (let cancelled = false; ; await sleep(clock, POLL_INTERVAL_MS)) {
    const remaining = await queuedJobs(ids);
    if (remaining.length === 0) return;
    if (clock.monotonicMs() < deadline || cancelled) continue;
    const remainingIds = remaining.map((job) => job.id);
    printNote(`The jobs ${remainingIds.join(', ')} did not end within ${DRAIN_SECONDS} s and are cancelled.`);
    await cancelJobs(remainingIds);
    cancelled = true;
  }
}
