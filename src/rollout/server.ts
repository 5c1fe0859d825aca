import type { AddressInfo } from 'node:net';
import type { FastifyInstance } from 'fastify';
import { asFloeError, FloeError } from '../core/errors.ts';
import { parseAs } from '../core/parse.ts';
import type { RolloutEvent } from '../schema/index.ts';
import { isLoopbackHost } from './callback-address.ts';
import { type RolloutConfigInput, rolloutConfigSchema } from './config.ts';
import type { RolloutContext } from './context.ts';
import { createControlPlane, type RolloutDeps } from './control-plane.ts';
import { buildApp } from './http/app.ts';

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
  const plane = await createControlPlane(config, deps);
  const { context } = plane;
  const app = buildApp(context, plane.handlers);
  let background: Promise<void> = Promise.resolve();
  let closed: Promise<void> | null = null;
  const stop = async (): Promise<void> => {
    plane.close();
    await closeApp(context, app);
    await background;
    await plane.finish();
  };
  return {
    app,
    listen: async () => {
      const url = await listen(app, config.host, config.port);
      background = plane.run();
      return { url };
    },
    sweep: () => plane.sweep(),
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
