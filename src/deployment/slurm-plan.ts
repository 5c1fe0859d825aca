import type { ClusterConfig } from './cluster-config.ts';
import { databaseScript } from './database-script.ts';
import { nodeScript } from './node-script.ts';
import { serverScript } from './server-script.ts';

/** One call of sbatch. */
export type PlannedJob = {
  readonly name: string;
  readonly file: string;
  readonly script: string;
  /** Jobs of the array; 1 for a job that is none. */
  readonly count: number;
  /** Name of the job that must have started before this one waits for it, so that no time limit is used up in a queue. */
  readonly after: string | null;
};

/** All jobs of a cluster, in the order in which they are submitted. */
export function slurmPlan(config: ClusterConfig): PlannedJob[] {
  const { database, server, nodes } = config;
  return [
    ...(database.kind === 'postgres' ? [planned('database', databaseScript(config, database), 1, null)] : []),
    planned('server', serverScript(config), server.replicas, database.kind === 'postgres' ? 'database' : null),
    ...nodes.map((role) => planned(role.name, nodeScript(config, role), role.count, 'server')),
  ];
}

function planned(name: string, script: string, count: number, after: string | null): PlannedJob {
  return { name, file: `${name}.sbatch`, script, count, after };
}
