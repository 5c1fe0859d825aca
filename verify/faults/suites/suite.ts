import type { RandomSource } from '../../../src/core/random.ts';
import type { PostgresCluster } from '../../services/postgres-cluster.ts';
import type { Progress } from '../progress.ts';
import type { SuiteRow } from '../traffic.ts';

export type SuiteRun = {
  /** How often the fault is to be injected. */
  readonly runs: number;
  readonly random: RandomSource;
  /** `null` for SQLite. */
  readonly postgres: PostgresCluster | null;
  readonly progress: Progress;
};

/** One kind of fault, injected into a running service. */
export type Suite = {
  readonly id: string;
  /** The promise that the suite checks. */
  readonly title: string;
  readonly runs: { readonly full: number; readonly quick: number };
  /** The stores that it runs over; all when absent. */
  readonly stores?: readonly string[];
  /** What this machine lacks to run it; `null` when it can run. */
  readonly whyNot?: () => Promise<string | null>;
  run(run: SuiteRun): Promise<SuiteRow>;
};
