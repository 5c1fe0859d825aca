import type { AddressInfo } from 'node:net';
import type { FastifyInstance } from 'fastify';
import type { Clock } from '../core/clock.ts';
import { asFloeError, FloeError } from '../core/errors.ts';
import { newId } from '../core/ids.ts';
import { parseAs } from '../core/parse.ts';
import type { RolloutEvent, TaskRequest } from '../schema/index.ts';
import type { BlobStore, Store } from '../store/index.ts';
import { isLoopbackHost } from './callback-address.ts';
import { type CallbackTransport, httpTransport } from './callback-transport.ts';
import { CallbackDelivery } from './callbacks.ts';
import { type RolloutConfigInput, rolloutConfigSchema } from './config.ts';
import { followAnnouncements, type RolloutContext, type RolloutLog } from './context.ts';
import { Counters } from './counters.ts';
import { EventBus } from './event-bus.ts';
import { buildApp } from './http/app.ts';
import { engineHandlers } from './http/engine-handlers.ts';
import { nodeHandlers } from './http/node-handlers.ts';
import { type MetricsRegistry, serviceHandlers } from './http/service-handlers.ts';
import { sessionHandlers } from './http/session-handlers.ts';
import { taskHandlers } from './http/task-handlers.ts';
import { sweepExpired } from './leases.ts';
import { removeDrainedNodes } from './nodes.ts';
import { ServiceTime } from './service-time.ts';
import { Wakeups } from './wakeups.ts';

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
};

export type RolloutServer = {
  /** For routes of other parts (a dashboard, say) and for tests that need no socket. */
  readonly app: FastifyInstance;
  /** Starts the listener and the background work. Throws `setup_failed` when the address cannot be had. */
  listen(): Promise<{ url: string }>;
  /** Takes back leases that ran out; done every `sweep_seconds` while listening. */
  sweep(): Promise<void>;
  /** Calls `listener` with what has been committed; returns the end of the subscription. */
  subscribe(listener: (event: RolloutEvent) => void): () => void;
  /** Answers held requests, waits for the others up to the grace time, and stops. The store stays open: its owner closes it. */
  close(): Promise<void>;
};

const SILENT: RolloutLog = { info: () => {}, warn: () => {}, error: () => {} };

/**
 * The control plane over a store. Everything that it has acknowledged is in the store: it may be killed at any moment and
 * started again. Throws `schema_violation` for a wrong configuration and `setup_failed` for an unsafe one.
 */
export async function createRolloutServer(input: RolloutConfigInput, deps: RolloutDeps): Promise<RolloutServer> {
  const config = parseAs(rolloutConfigSchema, input, 'rollout config');
  if (config.token === null && !isLoopbackHost(config.host)) {
    throw new FloeError(
      'setup_failed',
      `without a token the rollout server listens on loopback only, not on ${config.host}: set a token, or host 127.0.0.1`,
    );
  }
  const closing = new AbortController();
  const context: RolloutContext = {
    config,
    store: deps.store,
    blobs: deps.blobs,
    clock: deps.clock,
    random: deps.random ?? Math.random,
    newId: deps.newId ?? ((prefix) => newId(prefix, deps.clock)),
    counters: new Counters(),
    time: await ServiceTime.start(deps.clock, deps.store),
    wakeups: new Wakeups(deps.clock, closing.signal),
    events: new EventBus(),
    log: deps.log ?? SILENT,
    validateTask: deps.validateTask,
    closing: closing.signal,
  };
  const unfollow = followAnnouncements(context);
  const app = buildApp(context, {
    ...taskHandlers(context),
    ...sessionHandlers(context),
    ...nodeHandlers(context),
    ...engineHandlers(context),
    ...serviceHandlers(context, deps.metricsRegistry ?? null),
  });
  const background: Promise<void>[] = [];
  let closed: Promise<void> | null = null;
  const stop = async (): Promise<void> => {
    closing.abort(new FloeError('not_ready', 'the server is shutting down'));
    await closeApp(context, app);
    await Promise.all(background);
    unfollow();
    await context.time.persist();
  };
  return {
    app,
    listen: async () => {
      const url = await listen(app, config.host, config.port);
      background.push(
        new CallbackDelivery(context, deps.callbackTransport ?? httpTransport(config)).run(),
        sweepForever(context),
      );
      return { url };
    },
    sweep: () => sweepOnce(context),
    subscribe: (listener) => context.events.subscribe(listener),
    close: () => {
      closed ??= stop();
      return closed;
    },
  };
}

async function listen(app: FastifyInstance, host: string, port: number): Promise<string> {
  try {
    await app.listen({ host, port });
  } catch (cause) {
    const { message } = asFloeError(cause);
    throw new FloeError('setup_failed', `cannot listen on ${host}:${port}: ${message}`, { host, port }, cause);
  }
  const address = app.server.address() as AddressInfo;
  const shown = address.family === 'IPv6' ? `[${address.address}]` : address.address;
  return `http://${shown}:${address.port}`;
}

async function closeApp(context: RolloutContext, app: FastifyInstance): Promise<void> {
  const cancelTimer = context.clock.schedule(context.config.shutdown_grace_seconds * 1000, () =>
    app.server.closeAllConnections(),
  );
  await app.close();
  cancelTimer();
}

async function sweepOnce(context: RolloutContext): Promise<void> {
  await sweepExpired(context);
  await removeDrainedNodes(context);
}

async function sweepForever(context: RolloutContext): Promise<void> {
  while (!context.closing.aborted) {
    try {
      await sweepOnce(context);
    } catch (thrown) {
      // The store may be full or busy for a while; leases are swept when it is back.
      if (!FloeError.is(thrown) || thrown.code !== 'store_unavailable') throw thrown;
      context.log.error({ err: thrown }, 'the store is unavailable; expired leases wait');
    }
    await pause(context, context.config.sweep_seconds * 1000);
  }
}

/** Resolves after `ms`, or as soon as the server closes. */
function pause(context: RolloutContext, ms: number): Promise<void> {
  return new Promise((resolve) => {
    const end = (): void => {
      cancelTimer();
      context.closing.removeEventListener('abort', end);
      resolve();
    };
    const cancelTimer = context.clock.schedule(ms, end);
    context.closing.addEventListener('abort', end, { once: true });
    if (context.closing.aborted) end();
  });
}
