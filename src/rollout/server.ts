import type { FastifyInstance } from 'fastify';
import { FloeError } from '../core/errors.ts';
import { parseAs } from '../core/parse.ts';
import type { RolloutEvent, RolloutStatus } from '../schema/index.ts';
import { isLoopbackHost } from './callbacks/address.ts';
import { type RolloutConfig, type RolloutConfigInput, rolloutConfigSchema } from './config.ts';
import { createControlPlane, type RolloutDeps } from './control-plane.ts';
import { Listeners, type ListenerUrls } from './http/listeners.ts';
import { StatusBoard } from './status/status.ts';

export type RolloutServer = {
  /** The main listener's application, for additional routes (a dashboard) and for tests that need no socket. */
  readonly app: FastifyInstance;
  /** Starts the listeners and the background work. Throws `setup_failed` when an address cannot be listened on. */
  listen(): Promise<ListenerUrls>;
  /** Takes back expired leases, and ends sessions that are cancelled or past their deadline. Runs every `sweep_seconds` while listening. */
  sweep(): Promise<void>;
  /** The body of `GET /rollout/status`. */
  status(): Promise<RolloutStatus>;
  /** Calls `listener` with every committed event. Returns a function that ends the subscription. */
  subscribe(listener: (event: RolloutEvent) => void): () => void;
  /** Answers held requests, waits up to `shutdown_grace_seconds` for the others, and stops. The store stays open: its owner closes it. */
  close(): Promise<void>;
};

/**
 * Creates the rollout server over a store. Everything that it acknowledges is in the store before, so it may be killed at any
 * moment and restarted. Throws `schema_violation` for a wrong configuration, and `setup_failed` for an unsafe one.
 */
export async function createRolloutServer(input: RolloutConfigInput, deps: RolloutDeps): Promise<RolloutServer> {
  const config = parseAs(rolloutConfigSchema, input, 'rollout config');
  refuseUnprotectedHosts(config);
  const plane = await createControlPlane(config, deps);
  const { context } = plane;
  const board = new StatusBoard(context);
  const listeners = new Listeners(context, plane.handlers);
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
