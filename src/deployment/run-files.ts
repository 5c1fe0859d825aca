import { type ClusterConfig, runDir } from './cluster-config.ts';

/** Where the files of a cluster's run directory are, for those who make and read them. */
export function runFiles(config: ClusterConfig): {
  readonly token: string;
  readonly password: string;
  readonly jobs: string;
  readonly servers: string;
  readonly databaseUrl: string;
  readonly scripts: string;
  readonly folders: readonly string[];
} {
  const run = runDir(config);
  return {
    token: `${run}/token`,
    password: `${run}/database-password`,
    jobs: `${run}/jobs.json`,
    servers: `${run}/servers`,
    databaseUrl: `${run}/database-url`,
    scripts: `${run}/scripts`,
    folders: [run, `${run}/servers`, `${run}/logs`, `${run}/scripts`],
  };
}
