import type { Clock, RandomSource } from '@floe-rl/core';
import type { BatchFilter } from '@floe-rl/core/protocol';
import type { EvaluatorSpec, TaskRequest } from '@floe-rl/core/schema';
import type { BlobStore } from '../store/index.ts';
import type { EpochPlans } from './batches/epoch-plans.ts';
import type { RolloutConfig } from './config.ts';
import type { EventBus } from './events.ts';
import type { NodeSizes } from './nodes/memory.ts';
import type { ServiceTime } from './service-time.ts';
import type { Scheduling } from './sessions/scheduling.ts';
import type { TaskTurns } from './sessions/task-turns.ts';
import type { TrajectoryReader } from './sessions/trajectory-reader.ts';
import type { Counters } from './status/counters.ts';
import type { Wakeups } from './wakeups.ts';
import type { WatchedStore } from './watched-store.ts';

/** Receives the server's log lines. A pino logger satisfies it. */
export interface RolloutLog {
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/** Returns the text of each token id of a model; `null` when there is no tokenizer for the model. */
export type TokenTexts = (model: string, ids: readonly number[]) => readonly string[] | null;

/** The configuration and the shared objects that every operation of the control plane works with. */
export type RolloutContext = {
  readonly config: RolloutConfig;
  readonly store: WatchedStore;
  readonly blobs: BlobStore;
  readonly trajectories: TrajectoryReader;
  readonly clock: Clock;
  readonly random: RandomSource;
  /** Returns a new id that begins with `prefix`. Later ids sort after earlier ones. */
  readonly newId: (prefix: string) => string;
  readonly counters: Counters;
  readonly time: ServiceTime;
  readonly scheduling: Scheduling;
  readonly deliveryTurns: TaskTurns;
  readonly nodeSizes: NodeSizes;
  readonly wakeups: Wakeups;
  readonly events: EventBus;
  readonly log: RolloutLog;
  /**
   * Checks a task that is submitted. Throws a FloeError when the task names a plug-in that does not exist or gives it a wrong
   * configuration.
   */
  readonly validateTask: (task: TaskRequest) => void | Promise<void>;
  /** Whether an evaluator uses a fresh runtime, whose memory a session then needs in addition. It does not throw. */
  readonly usesFreshRuntime: (evaluator: EvaluatorSpec) => boolean;
  /** Functions of the operator that decide which groups of batch streams are handed out, by name. */
  readonly batchFilters: ReadonlyMap<string, BatchFilter>;
  /** Returns the text of each token id; `null` for a model without a tokenizer on this server. */
  readonly tokenTexts: TokenTexts;
  readonly epochPlans: EpochPlans;
  /** Aborted when the server closes. */
  readonly closing: AbortSignal;
};
