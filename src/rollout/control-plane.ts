import { setMaxListeners } from 'node:events';
import type { Clock } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';
import { newId } from '../core/ids.ts';
import { passThroughTracer, type Tracer } from '../core/tracing.ts';
import type { TaskRequest } from '../schema/index.ts';
import type { BlobStore, Store } from '../store/index.ts';
import { sweepForever, sweepOnce } from './background.ts';
import { CallbackDelivery } from './callbacks/delivery.ts';
import { type CallbackTransport, httpTransport } from './callbacks/transport.ts';
import type { RolloutConfig } from './config.ts';
import { followAnnouncements, type RolloutContext, type RolloutLog } from './context.ts';
import { EventBus } from './event-bus.ts';
import type { RouteName } from './http/api.ts';
import { engineHandlers } from './http/engine-handlers.ts';
import type { Handlers } from './http/handler.ts';
import { nodeHandlers } from './http/node-handlers.ts';
import { type MetricsRegistry, serviceHandlers } from './http/service-handlers.ts';
import { sessionHandlers } from './http/session-handlers.ts';
import { taskHandlers } from './http/task-handlers.ts';
import { retainForever } from './retention.ts';
import { ServiceTime } from './service-time.ts';
import { endCancelled, endCancelledForever } from './sessions/cancel.ts';
import { Scheduling } from './sessions/scheduling.ts';
import { Counters } from './status/counters.ts';
import { Wakeups } from './wakeups.ts';
import { WatchedStore } from './watched-store.ts';

export type RolloutDeps = {
  readonly store: Store;
  readonly blobs: BlobStore;
  readonly clock: Clock;
  /** Simulations give their own, to be repeatable. */
  readonly random?: () => number;
  readonly newId?: (prefix: string) => string;
  /** Throws a FloeError when a task names a harness, builder or evaluator that does not exist or configures it wrongly. */
  readonly validateTask: (task: TaskRequest) => void | Promise<void>;
  readonly metricsRegistry?: MetricsRegistry;
  /** Default: HTTP. */
  readonly callbackTransport?: CallbackTransport;
  readonly log?: RolloutLog;
  /** Default: traces are handed on, and nothing is recorded. */
  readonly tracer?: Tracer;
};

/** The rollout server without its listeners. */
export type ControlPlane = {
  readonly context: RolloutContext;
  /** What is called over HTTP. */
  readonly handlers: Handlers<RouteName>;
  /** Starts the background work. Resolves when that has ended after `close`; rejects when it fails by a defect. */
  run(): Promise<void>;
  /** Takes back leases that ran out, and ends what is cancelled or past its deadline; done all the time while it runs. */
  sweep(): Promise<void>;
  /** Ends held calls and the background work; new calls are the caller's to refuse. */
  close(): void;
  /** After `close`, when all calls have been answered. */
  finish(): Promise<void>;
};

const SILENT: RolloutLog = { info: () => {}, warn: () => {}, error: () => {} };

/** Throws `store_unavailable`. */
export async function createControlPlane(config: RolloutConfig, deps: RolloutDeps): Promise<ControlPlane> {
  const closing = new AbortController();
  // Every held request listens to it, which is no leak.
  setMaxListeners(0, closing.signal);
  const counters = new Counters();
  const store = new WatchedStore(deps.store, counters);
  const context: RolloutContext = {
    config,
    store,
    blobs: deps.blobs,
    clock: deps.clock,
    random: deps.random ?? Math.random,
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
      const endless = [sweepForever(context), retainForever(context), endCancelledForever(context)];
      await Promise.all([callbacks.run(), ...endless]);
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
