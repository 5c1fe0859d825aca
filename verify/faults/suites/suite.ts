import type { RandomSource } from '@floe-rl/core';
import type { Progress } from '../../runner/progress.ts';
import type { PostgresCluster } from '../../services/postgres-cluster.ts';
import type { SuiteRow } from '../traffic.ts';

export type SuiteRun = {
  /** Number of times that the suite injects its fault. */
  readonly runs: number;
  readonly random: RandomSource;
  /** The PostgreSQL server that stores the database; `null` when the store is SQLite. */
  readonly postgres: PostgresCluster | null;
  readonly progress: Progress;
};

/** A fault suite: it injects one kind of fault into a running service and checks the guarantees that the service gives to trainers. */
export type Suite = {
  readonly id: string;
  /** The guarantee that the suite checks, as a short sentence. */
  readonly title: string;
  readonly runs: { readonly full: number; readonly quick: number };
  /** The stores (`sqlite`, `postgres`) that the suite runs with; all stores when absent. */
  readonly stores?: readonly string[];
  /** Returns what this machine lacks for the suite, such as a missing package; `null` when the suite can run. */
  readonly whyNot?: () => Promise<string | null>;
  run(run: SuiteRun): Promise<SuiteRow>;
};
