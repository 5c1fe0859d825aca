import type { ClusterConfig } from './cluster-config.ts';
import { databaseScript } from './database-script.ts';
import { nodeScript } from './node-script.ts';
import { serverScript } from './server-script.ts';

/** A Slurm job or job array of a cluster, which is submitted with sbatch. */
export type PlannedJob = {
  readonly name: string;
  readonly file: string;
  readonly script: string;
  /** Number of jobs in the Slurm job array; 1 for a single job. */
  readonly count: number;
  /**
   * Name of the job that must have started before this job may start; `null` when it depends on no other job. Without this dependency, the
   * job could spend its time limit waiting for a job that is still queued.
   */
  readonly after: string | null;
};

/** Returns all jobs of a cluster in the order in which they are submitted. */
export function slurmPlan(config: ClusterConfig): PlannedJob[] {
  const { database, server, nodes } = config;
  return [
    ...(database.kind === 'postgres' ? [plannedJob('database', databaseScript(config, database), 1, null)] : []),
    plannedJob('server', serverScript(config), server.replicas, database.kind === 'postgres' ? 'database' : null),
    ...nodes.map((role) => plannedJob(role.name, nodeScript(config, role), role.count, 'server')),
  ];
}

function plannedJob(name: string, script: string, count: number, after: string | null): PlannedJob {
  return { name, file: `${name}.sbatch`, script, count, after };
}
