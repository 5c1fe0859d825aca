import { setMaxListeners } from 'node:events';
import type { Clock } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';
import { newId } from '../core/ids.ts';
import { type RandomSource, systemRandom } from '../core/random.ts';
import { passThroughTracer, type Tracer } from '../core/tracing.ts';
import type { TaskRequest } from '../schema/index.ts';
import type { BlobStore, Store } from '../store/index.ts';
import { runRetention, runSweeps, sweepOnce } from './background.ts';
import { CallbackDelivery } from './callbacks/delivery.ts';
import { type CallbackTransport, httpTransport } from './callbacks/transport.ts';
import type { RolloutConfig } from './config.ts';
import type { RolloutContext, RolloutLog } from './context.ts';
import { EventBus } from './events.ts';
import type { RouteName } from './http/api.ts';
import { engineHandlers } from './http/engine-handlers.ts';
import type { Handlers } from './http/handler.ts';
import { nodeHandlers } from './http/node-handlers.ts';
import { type MetricsRegistry, serviceHandlers } from './http/service-handlers.ts';
import { sessionHandlers } from './http/session-handlers.ts';
import { taskHandlers } from './http/task-handlers.ts';
import { ServiceTime } from './service-time.ts';
import { endCancelled, runCancellations } from './sessions/cancel.ts';
import { Scheduling } from './sessions/scheduling.ts';
import { Counters } from './status/counters.ts';
import { followAnnouncements } from './transaction.ts';
import { Wakeups } from './wakeups.ts';
import { WatchedStore } from './watched-store.ts';

/** What the control plane needs from the program that starts it. */
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
  /** Runs the background work. Resolves after `close`, when all of it has ended; rejects when a defect makes it fail. */
  run(): Promise<void>;
  /**
   * Runs one round of the sweeps, which handle expired leases, deadlines, drained nodes and cancelled sessions. `run` does this regularly.
   */
  sweep(): Promise<void>;
  /** Answers the requests that are held open and ends the background work. The caller must refuse new requests itself. */
  close(): void;
  /** Stores the service time. To be called after `close`, once all requests have been answered. */
  finish(): Promise<void>;
};

const SILENT: RolloutLog = { info: () => {}, warn: () => {}, error: () => {} };

/** Creates the control plane over a store. Throws `store_unavailable`. */
export async function createControlPlane(config: RolloutConfig, deps: RolloutDeps): Promise<ControlPlane> {
  const closing = new AbortController();
  // Every held request listens to this signal, and Node would warn of a memory leak at the eleventh listener.
  setMaxListeners(0, closing.signal);
  const counters = new Counters();
  const store = new WatchedStore(deps.store, counters);
  const context: RolloutContext = {
    config,
    store,
    blobs: deps.blobs,
    clock: deps.clock,
    random: deps.random ?? systemRandom,
    newId: deps.newId ?? ((prefix) => newId(prefix, deps.clock)),
    counters,
    time: await ServiceTime.start(deps.clock, store),
    scheduling: new Scheduling(config, deps.clock),
    wakeups: new Wakeups(deps.clock, closing.signal),
    events: new EventBus(),
    log: deps.log ?? SILENT,
    validateTask: deps.validateTask,
    closing: closing.signal,
  };
  const unfollow = followAnnouncements(context);
  return {
    context,
    handlers: {
      ...taskHandlers(context),
      ...sessionHandlers(context),
      ...nodeHandlers(context),
      ...engineHandlers(context),
      ...serviceHandlers(context, deps.metricsRegistry ?? null),
    },
    run: async () => {
      const callbacks = new CallbackDelivery(
        context,
        deps.callbackTransport ?? httpTransport(config),
        deps.tracer ?? passThroughTracer,
      );
      await Promise.all([callbacks.run(), runSweeps(context), runRetention(context), runCancellations(context)]);
    },
    sweep: async () => {
      await sweepOnce(context);
      await endCancelled(context);
    },
    close: () => closing.abort(new FloeError('not_ready', 'the server is shutting down')),
    finish: async () => {
      unfollow();
      context.time.stop();
      await context.time.persist();
    },
  };
}
