import { FloeError, isLoopbackHost, parseAs } from '@floe-rl/core';
import type { RolloutEvent, RolloutStatus } from '@floe-rl/core/schema';
import type { FastifyInstance } from 'fastify';
import { type RolloutConfig, type RolloutConfigInput, rolloutConfigSchema } from './config.ts';
import { createControlPlane, type RolloutDeps } from './control-plane.ts';
import { Listeners, type ListenerUrls } from './http/listeners.ts';
import { StatusBoard } from './status/status.ts';

export type RolloutServer = {
  /** The HTTP application of the main listener. Callers add routes to it (a dashboard), and tests send requests to it without a socket. */
  readonly app: FastifyInstance;
  /** Starts the listeners and the background work. Throws `setup_failed` when the server cannot listen on an address. */
  listen(): Promise<ListenerUrls>;
  /**
   * Runs one round of the sweeps, which take back expired leases and end sessions that are cancelled or past their deadline. While the
   * server listens, this happens every `sweep_seconds`.
   */
  sweep(): Promise<void>;
  /** Returns the body of `GET /rollout/status`. */
  status(): Promise<RolloutStatus>;
  /** Calls `listener` with every event of a committed transaction. Returns a function that ends the subscription. */
  subscribe(listener: (event: RolloutEvent) => void): () => void;
  /**
   * Answers the requests that are held open, waits up to `shutdown_grace_seconds` for all other requests, and stops. It does not close the
   * store, which belongs to the caller.
   */
  close(): Promise<void>;
};

/**
 * Creates the rollout server over a store. Every change is stored before it is acknowledged, so the server may be killed at any moment and
 * restarted. Throws `schema_violation` for a wrong configuration, and `setup_failed` for an unsafe one.
 */
export async function createRolloutServer(input: RolloutConfigInput, deps: RolloutDeps): Promise<RolloutServer> {
  const config = parseAs(rolloutConfigSchema, input, 'rollout config');
  refuseUnprotectedHosts(config);
  const plane = await createControlPlane(config, deps);
  const { context } = plane;
  const board = new StatusBoard(context);
  const listeners = new Listeners(context, plane.handlers, plane.compatible);
  let background: Promise<void> = Promise.resolve();
  let closed: Promise<void> | null = null;
  const stop = async (): Promise<void> => {
    plane.close();
    const cancelTimer = context.clock.schedule(config.shutdown_grace_seconds * 1000, () =>
      listeners.closeConnections(),
    );
    await listeners.close();
    cancelTimer();
    await background;
    await plane.finish();
  };
  return {
    app: listeners.main.app,
    listen: async () => {
      const urls = await listeners.listen();
      background = plane.run();
      return urls;
    },
    sweep: () => plane.sweep(),
    status: () => board.status(),
    subscribe: (listener) => context.events.subscribe(listener),
    close: () => {
      closed ??= stop();
      return closed;
    },
  };
}

/** Throws `setup_failed` when the control API would be reachable from other machines without a token. */
function refuseUnprotectedHosts(config: RolloutConfig): void {
  if (config.token !== null || config.tokens.length > 0) return;
  for (const { host } of [config, config.node_listener, config.admin_listener].filter(
    (listener) => listener !== null,
  )) {
    if (isLoopbackHost(host)) continue;
    throw new FloeError(
      'setup_failed',
      `without a token the rollout server listens on loopback only, not on ${host}: set a token, or host 127.0.0.1`,
    );
  }
}
