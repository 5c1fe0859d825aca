import { setMaxListeners } from 'node:events';
import {
  type Clock,
  FloeError,
  newId,
  passThroughTracer,
  type RandomSource,
  systemRandom,
  type Tracer,
} from '@floe-rl/core';
import type { BatchFilter } from '@floe-rl/core/protocol';
import type { EvaluatorSpec, TaskRequest } from '@floe-rl/core/schema';
import { LRUCache } from 'lru-cache';
import type { BlobStore, Store } from '../store/index.ts';
import { runRetention, runSweeps, sweepOnce } from './background.ts';
import { BatchFormatter } from './batches/formatter.ts';
import { RowGenerators } from './batches/generator.ts';
import { replenishAll, runBatches } from './batches/replenish.ts';
import { CallbackDelivery } from './callbacks/delivery.ts';
import { type CallbackTransport, httpTransport } from './callbacks/transport.ts';
import type { RolloutConfig } from './config.ts';
import type { RolloutContext, RolloutLog, TokenTexts } from './context.ts';
import { EventBus } from './events.ts';
import type { RouteName } from './http/api.ts';
import { batchHandlers } from './http/batch-handlers.ts';
import type { CompatibleApi } from './http/compatible-api.ts';
import { engineHandlers } from './http/engine-handlers.ts';
import type { Handlers } from './http/handler.ts';
import { nodeHandlers } from './http/node-handlers.ts';
import { type MetricsRegistry, serviceHandlers } from './http/service-handlers.ts';
import { sessionHandlers } from './http/session-handlers.ts';
import { sessionListHandlers } from './http/session-list-handlers.ts';
import { taskHandlers } from './http/task-handlers.ts';
import { NodeSizes } from './nodes/memory.ts';
import { polarApi } from './polar/handlers.ts';
import { prorlApi } from './prorl/handlers.ts';
import { ServiceTime } from './service-time.ts';
import { endCancelled, runCancellations } from './sessions/cancel.ts';
import { Scheduling } from './sessions/scheduling.ts';
import { TaskTurns } from './sessions/task-turns.ts';
import { TrajectoryReader } from './sessions/trajectory-reader.ts';
import { Counters } from './status/counters.ts';
import { followAnnouncements } from './transaction.ts';
import { Wakeups } from './wakeups.ts';
import { type WatchedStore, watchedStore } from './watched-store.ts';

/** The objects and functions that the program which starts the control plane passes to it. */
export type RolloutDeps = {
  readonly store: Store;
  readonly blobs: BlobStore;
  readonly clock: Clock;
  /** Source of random numbers. Default: the system's. Simulations pass a seeded source, so that they are repeatable. */
  readonly random?: RandomSource;
  /** Returns a new id that begins with `prefix`. Default: random ids. Simulations pass a counter. */
  readonly newId?: (prefix: string) => string;
  /**
   * Checks a task that is submitted. Throws a FloeError when it names a harness, builder or evaluator that does not exist or gives it a
   * wrong configuration.
   */
  readonly validateTask: (task: TaskRequest) => void | Promise<void>;
  /**
   * Whether an evaluator uses a fresh runtime, whose memory a session then needs in addition. It must not throw. Default: every evaluator does
   * unless the task states otherwise.
   */
  readonly usesFreshRuntime?: (evaluator: EvaluatorSpec) => boolean;
  /** Functions of the operator that decide which groups of batch streams are handed out, by name. Default: none. */
  readonly batchFilters?: ReadonlyMap<string, BatchFilter>;
  /** Returns the text of each token id; `null` for a model without a tokenizer here. Default: no model has a tokenizer. */
  readonly tokenTexts?: TokenTexts;
  /** The registry whose metrics `/metrics` returns. Without a registry, `/metrics` answers `not_found`. */
  readonly metricsRegistry?: MetricsRegistry;
  /** Sends callbacks to trainers. Default: over HTTP. */
  readonly callbackTransport?: CallbackTransport;
  /** Receives log lines. Default: nothing is logged. */
  readonly log?: RolloutLog;
  /** Records spans. Default: trace contexts are passed through, and no span is recorded. */
  readonly tracer?: Tracer;
};

/** The rollout server without its HTTP listeners. */
export type ControlPlane = {
  readonly context: RolloutContext;
  /** The functions that answer the HTTP routes, by route name. */
  readonly handlers: Handlers<RouteName>;
  /** The APIs of other systems, such as NVIDIA's Polar, that this server also offers. */
  readonly compatible: readonly CompatibleApi[];
  /** Runs the background work. Resolves after `close`, when all of it has ended; rejects when a defect makes it fail. */
  run(): Promise<void>;
  /**
   * Runs one round of the sweeps, which handle expired leases, deadlines, drained nodes and cancelled sessions. `run` does this regularly.
   */
  sweep(): Promise<void>;
  /** Answers the requests that are held open and ends the background work. The caller must refuse new requests itself. */
  close(): void;
  /** Stores the service time, which decides when leases expire. Call it after `close`, once all requests have been answered. */
  finish(): Promise<void>;
};

/** Maximum number of epoch plans that are kept in memory. */
const MAX_PLANS = 16;

const SILENT: RolloutLog = { info: () => {}, warn: () => {}, error: () => {} };

/**
 * Creates the control plane over a store. Throws `store_unavailable`, and `setup_failed` when the database is empty although the blob store
 * has blobs.
 */
export async function createControlPlane(config: RolloutConfig, deps: RolloutDeps): Promise<ControlPlane> {
  const closing = new AbortController();
  // Every held request adds a listener to this signal. With the default limit, Node would warn of a memory leak at the eleventh listener.
  setMaxListeners(0, closing.signal);
  const counters = new Counters();
  const store = watchedStore(deps.store, counters);
  const log = deps.log ?? SILENT;
  await refuseLostDatabase(store, deps.blobs);
  const context: RolloutContext = {
    config,
    store,
    blobs: deps.blobs,
    trajectories: new TrajectoryReader(deps.blobs, ({ session_id, cursor }, { message }) => {
      counters.add('corrupt_records');
      log.error(
        { session_id, cursor, error: message },
        'a stored trajectory is unreadable; its result is sent without it',
      );
    }),
    clock: deps.clock,
    random: deps.random ?? systemRandom,
    newId: deps.newId ?? ((prefix) => newId(prefix, deps.clock)),
    counters,
    time: await ServiceTime.start(deps.clock, store),
    scheduling: new Scheduling(config, deps.clock),
    deliveryTurns: new TaskTurns(),
    nodeSizes: new NodeSizes(deps.clock),
    wakeups: new Wakeups(deps.clock, closing.signal),
    events: new EventBus(),
    log,
    validateTask: deps.validateTask,
    usesFreshRuntime: deps.usesFreshRuntime ?? (({ refresh_runtime }) => refresh_runtime ?? true),
    batchFilters: deps.batchFilters ?? new Map(),
    tokenTexts: deps.tokenTexts ?? (() => null),
    epochPlans: new LRUCache({ max: MAX_PLANS }),
    closing: closing.signal,
  };
  const unfollow = followAnnouncements(context);
  const formatter = new BatchFormatter();
  const generators = new RowGenerators(context);
  return {
    context,
    handlers: {
      ...taskHandlers(context),
      ...batchHandlers(context, formatter),
      ...sessionHandlers(context),
      ...sessionListHandlers(context),
      ...nodeHandlers(context),
      ...engineHandlers(context),
      ...serviceHandlers(context, deps.metricsRegistry ?? null),
    },
    compatible: [polarApi(context), prorlApi(context)],
    run: async () => {
      const callbacks = new CallbackDelivery(
        context,
        deps.callbackTransport ?? httpTransport(config),
        deps.tracer ?? passThroughTracer,
      );
      await Promise.all([
        callbacks.run(),
        runSweeps(context),
        runRetention(context),
        runCancellations(context),
        runBatches(context, generators),
      ]);
    },
    sweep: async () => {
      await sweepOnce(context);
      await endCancelled(context);
      await replenishAll(context, generators);
    },
    close: () => closing.abort(new FloeError('not_ready', 'the server is shutting down')),
    finish: async () => {
      unfollow();
      await formatter.close();
      context.time.stop();
      await context.time.persist();
    },
  };
}

/**
 * Throws `setup_failed` when the database has never had a result or a task, but the blob store has blobs. The database was probably lost, or
 * another database is configured. None of its rows refers to these blobs, so the server would remove all of them.
 */
async function refuseLostDatabase(store: WatchedStore, blobs: BlobStore): Promise<void> {
  const isUsed = await store.read(
    async (tables) =>
      (await tables.results.lastCursor()) > 0 || (await tables.tasks.list({ status: null, limit: 1 })).length > 0,
  );
  if (isUsed) return;
  for await (const ref of blobs.olderThan(Number.POSITIVE_INFINITY)) {
    throw new FloeError(
      'setup_failed',
      `the database is empty, but the blob store has results of another database, such as ${ref}: restore that database, or start ` +
        'with an empty blob store',
      { ref },
    );
  }
}
